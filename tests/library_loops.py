"""Trainings that are not `train`'s, written as their users write them, for cells on all ranks.

Each runs two epochs over the same numbered samples and returns what `Found` holds. On an engine
without a GPU they use the CPU.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from jupyter_mgpu.on_engine import context

NUM_ROWS, NUM_EPOCHS, BATCH = 48, 2, 4  # whole batches for 2, 3 and 4 ranks

Found = tuple[int, list[int], list[float]]
"""World size, samples seen, weights at the end."""


class Numbered(Dataset):
    """Samples that say which they are."""

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        stream = torch.Generator().manual_seed(row)
        return {"row": torch.tensor(row), "x": torch.randn(4, generator=stream)}


class Net(nn.Module):
    """A network that keeps the numbers of the samples that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.rows: list[int] = []

    def forward(self, x: torch.Tensor, row: torch.Tensor) -> dict[str, torch.Tensor]:
        self.rows += row.tolist()
        return {"loss": (self.layer(x).squeeze(1) - x.sum(1)).square().mean()}


def new_net() -> Net:
    """Make a network that differs from rank to rank: the libraries must make it equal."""
    torch.manual_seed(context.require().rank)
    return Net()


def found_by(net: Net, world_size: int) -> Found:
    return world_size, net.rows, net.layer.weight.flatten().tolist()


def num_epochs() -> int:
    """Return two epochs; without an end where one engine is asked to stop."""
    return NUM_EPOCHS if context.require().world_size > 1 else 10**6


def by_hand() -> Found:
    torch.distributed.init_process_group()
    device = context.require().device
    net = new_net().to(device)
    parallel = DistributedDataParallel(net)
    sgd = torch.optim.SGD(parallel.parameters(), 0.05)
    sampler = DistributedSampler(Numbered())
    for epoch in range(NUM_EPOCHS):
        sampler.set_epoch(epoch)
        for batch in DataLoader(Numbered(), BATCH, sampler=sampler):
            sgd.zero_grad()
            parallel(**{name: part.to(device) for name, part in batch.items()})["loss"].backward()
            sgd.step()
    return found_by(net, torch.distributed.get_world_size())


def by_fabric() -> Found:
    from lightning.fabric import Fabric

    world_size = context.require().world_size
    fabric = Fabric(devices=1, num_nodes=world_size, strategy="ddp")
    fabric.launch()
    net = new_net()
    parallel, sgd = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.05))
    loader = fabric.setup_dataloaders(DataLoader(Numbered(), BATCH, shuffle=True))
    for epoch in range(NUM_EPOCHS):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            sgd.zero_grad()
            fabric.backward(parallel(**batch)["loss"])
            sgd.step()
    return found_by(net, fabric.world_size)


def by_lightning() -> Found:
    from lightning.pytorch import LightningModule, Trainer

    from jupyter_mgpu.integrations.lightning import ReportCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = new_net()

        def training_step(self, batch: Any, _: int) -> Any:
            loss = self.net(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.05)

    world_size = context.require().world_size
    module = Module()
    trainer = Trainer(
        devices=1,
        num_nodes=world_size,
        strategy="ddp" if world_size > 1 else "auto",
        max_epochs=num_epochs(),
        callbacks=[ReportCallback()],
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Numbered(), BATCH, shuffle=True))
    return found_by(module.net, trainer.world_size)


def by_accelerate() -> Found:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=context.require().device == "cpu")
    net = new_net()
    parallel, sgd, loader = accelerator.prepare(
        net,
        torch.optim.SGD(net.parameters(), 0.05),
        DataLoader(Numbered(), BATCH, shuffle=True),
    )
    for _ in range(NUM_EPOCHS):
        for batch in loader:
            sgd.zero_grad()
            accelerator.backward(parallel(**batch)["loss"])
            sgd.step()
    return found_by(net, accelerator.num_processes)


class Tokens(Dataset):
    """Sentences of one word, whose number is that of the sample."""

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.full((3,), row), "labels": torch.full((3,), row)}


def by_transformers(folder: str) -> Found:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from jupyter_mgpu.integrations.transformers import ReportCallback

    torch.manual_seed(context.require().rank)
    sizes = {"vocab_size": NUM_ROWS, "n_positions": 3, "n_embd": 8, "n_layer": 1, "n_head": 2}
    net = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))
    rows: list[int] = []
    net.register_forward_pre_hook(
        lambda _, __, named: rows.extend(named["input_ids"][:, 0].tolist()), with_kwargs=True
    )
    args = TrainingArguments(
        output_dir=folder,
        use_cpu=context.require().device == "cpu",
        num_train_epochs=num_epochs(),
        per_device_train_batch_size=BATCH,
        learning_rate=0.05,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(net, args, train_dataset=Tokens(), callbacks=[ReportCallback()]).train()
    return args.world_size, rows, net.transformer.wte.weight.flatten().tolist()
