"""Other ways to train in a pool: a hand-written DDP loop, Lightning's and transformers' Trainer."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import jupyter_mgpu as mgpu
from jupyter_mgpu.on_engine import context
from jupyter_mgpu.pool import Pool

NUM_ROWS, NUM_EPOCHS = 60, 2


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


Found = tuple[int, list[int], list[float]]
"""World size, samples seen, weights at the end."""


def found_by(net: Net, world_size: int) -> Found:
    return world_size, net.rows, net.layer.weight.flatten().tolist()


def train_by_hand() -> Found:
    torch.distributed.init_process_group()
    torch.manual_seed(context.require().rank)  # DDP makes the weights equal
    net = Net()
    parallel = DistributedDataParallel(net)
    sgd = torch.optim.SGD(parallel.parameters(), 0.05)
    sampler = DistributedSampler(Numbered())
    for epoch in range(NUM_EPOCHS):
        sampler.set_epoch(epoch)
        for batch in DataLoader(Numbered(), 4, sampler=sampler):
            sgd.zero_grad()
            parallel(**batch)["loss"].backward()
            sgd.step()
    return found_by(net, torch.distributed.get_world_size())


def train_by_lightning() -> Found:
    from lightning.pytorch import LightningModule, Trainer

    from jupyter_mgpu.integrations.lightning import ReportCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, _: int) -> Any:
            loss = self.net(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.05)

    engine = context.require()
    module = Module()
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        num_nodes=engine.world_size,
        strategy="ddp" if engine.world_size > 1 else "auto",
        max_epochs=NUM_EPOCHS if engine.world_size > 1 else 10**6,
        callbacks=[ReportCallback()],
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Numbered(), 4, shuffle=True))
    return found_by(module.net, trainer.world_size)


def train_by_transformers(folder: str) -> Found:
    from transformers import Trainer, TrainingArguments

    from jupyter_mgpu.integrations.transformers import ReportCallback

    net = Net()
    args = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        num_train_epochs=NUM_EPOCHS if context.require().world_size > 1 else 10**6,
        per_device_train_batch_size=4,
        learning_rate=0.05,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(net, args, train_dataset=Numbered(), callbacks=[ReportCallback()])
    trainer.train()
    return found_by(net, args.world_size)


def needs(name: str) -> Any:
    is_missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(is_missing, reason=f"{name} is not installed")


WAYS = [
    train_by_hand,
    pytest.param(train_by_lightning, marks=needs("lightning")),
    pytest.param(train_by_transformers, marks=[needs("transformers"), needs("accelerate")]),
]


def arguments(way: Any, folder: Path) -> tuple[str, ...]:
    return (str(folder),) if way is train_by_transformers else ()


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_of_ones_own_runs_twice_in_a_pool(trio: Pool, tmp_path: Path, way: Any) -> None:
    for _ in range(2):
        found = list(mgpu.spmd(way, *arguments(way, tmp_path), pool=trio))

        assert [world_size for world_size, _, _ in found] == [3] * 3
        assert found[0][2] == found[1][2] == found[2][2]
        per_epoch = NUM_ROWS // 3
        for epoch in range(NUM_EPOCHS):
            part = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
            assert sorted(row for _, rows, _ in found for row in rows[part]) == [*range(NUM_ROWS)]


@pytest.fixture(scope="module")
def solo():
    """One engine."""
    pool = mgpu.parpool(1, name="solo")
    yield pool
    pool.shutdown(wait_for_tasks=False)


@pytest.mark.parametrize("way", WAYS[1:])
def test_callbacks_report_and_end_a_trainer_when_asked_to(
    solo: Pool, tmp_path: Path, way: Any
) -> None:
    from notebooks import wait_until

    future = mgpu.parfeval(way, *arguments(way, tmp_path), pool=solo)
    wait_until(lambda: len(future.metrics) > 3 or future.done(), 60, "reports")
    future.request_stop()

    assert future.result(60)[0] == 1
    steps = [row["step"] for row in future.metrics if row.get("loss") is not None]
    assert steps == list(range(1, len(steps) + 1))
