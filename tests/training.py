"""What the tests of `train` share: small networks in float64, data, a comparison, a proof."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jupyter_mgpu import TrainingOptions, train
from jupyter_mgpu.pool import Pool
from notebooks import wait_until

NUM_FEATURES, NUM_CLASSES = 12, 3

torch.set_num_threads(1)  # of tiny networks: threads would only wait for each other


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_FEATURES, NUM_FEATURES)
        self.second = nn.Linear(NUM_FEATURES, NUM_FEATURES)
        self.second.weight = self.first.weight
        self.head = nn.Linear(NUM_FEATURES, NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(NUM_FEATURES, 16), nn.Tanh(), nn.Linear(16, NUM_CLASSES)
    return nn.Sequential(*layers).double()


def cnn() -> nn.Module:
    torch.manual_seed(0)
    image = nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*image, nn.Linear(48, NUM_CLASSES)).double()


def tied() -> nn.Module:
    torch.manual_seed(0)
    return Tied().double()


def normed() -> nn.Module:
    # Without a bias: its gradient is zero up to rounding, which AdamW would blow up.
    torch.manual_seed(0)
    first = nn.Linear(NUM_FEATURES, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh()
    return nn.Sequential(*first, nn.Linear(16, NUM_CLASSES)).double()


def samples(num: int = 203) -> tuple[torch.Tensor, torch.Tensor]:
    stream = torch.Generator().manual_seed(1)
    inputs = torch.randn(num, NUM_FEATURES, generator=stream, dtype=torch.float64)
    return inputs, torch.randint(0, NUM_CLASSES, (num,), generator=stream)


def fit(net: nn.Module, data: Any, pool: Pool | None = None, **options: Any) -> Any:
    """Train: on a pool if there is one, else here; 20 samples per step, 2 epochs by default."""
    where = "cpu" if pool is None else "parallel"
    if not callable(options.get("optimizer")):
        options.setdefault("learning_rate", 0.01)
    loss = options.pop("loss", nn.CrossEntropyLoss())
    settings = {"mini_batch_size": 20, "max_epochs": 2, "verbose": False, **options}
    asked = TrainingOptions(execution_environment=where, **settings)
    return train(net, data, loss, asked, pool=pool)


def difference(one: Any, other: Any) -> float:
    """The largest difference of two results of `train`: losses, validation, parameters."""
    (net, history), (other_net, other_history) = one, other
    assert len(history.steps) == len(other_history.steps)
    assert len(history.validations) == len(other_history.validations)
    pairs = [
        (row[key], other_row[key])
        for rows, other_rows in (
            (history.steps, other_history.steps),
            (history.validations, other_history.validations),
        )
        for row, other_row in zip(rows, other_rows, strict=True)
        for key in row
    ]
    state, other_state = net.state_dict(), other_net.state_dict()
    assert state.keys() == other_state.keys()
    pairs += [
        (value, wanted)
        for key in state
        for value, wanted in zip(
            state[key].flatten().tolist(), other_state[key].flatten().tolist(), strict=True
        )
    ]
    return max(abs(value - wanted) for value, wanted in pairs)


# --- the proof: any number of ranks trains the network of one device ---------------------

LEAST = 1e-10
WORLDS: dict[str, Any] = {"two": [1, 1, 0], "three": None, "uneven": [0.7, 0.2, 0.1]}


def two_groups(net: Any) -> Any:
    groups = [{"params": net[0].parameters(), "lr": 0.05}, {"params": net[2].parameters()}]
    return torch.optim.SGD(groups, lr=0.01, momentum=0.9)


def decaying(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "an MLP": (mlp, {}),
    "a CNN": (cnn, {}),
    "tied weights": (tied, {}),
    "clipping": (mlp, {"clip_norm": 0.1}),
    "accumulation": (mlp, {"accumulate": 3}),
    "parameter groups": (mlp, {"optimizer": two_groups}),
    "a schedule": (mlp, {"schedule": "cosine", "warm_up": 7}),
    "a scheduler": (mlp, {"schedule": decaying}),
    "partial batches": (mlp, {"drop_last": False}),
    "synchronised normalization": (normed, {"sync_batch_norm": True}),
    "averaged weights": (mlp, {"average_decay": 0.9}),
}
_references: dict[str, Any] = {}


def trained_both_ways(
    pool: Pool, case: str, world: str, cases: Any = CASES, **more: Any
) -> tuple[Any, Any]:
    """Train on a pool's ranks, with further options, and on one device; return both results."""
    make, options = cases[case]
    settings = {"max_epochs": 5, "validation": samples(), "metrics": ["accuracy"], **options}
    if case not in _references:
        _references[case] = fit(make(), samples(), **settings)
    found = fit(make(), samples(), pool, worker_load=WORLDS[world], **settings, **more)
    return found, _references[case]


# --- a training's life -------------------------------------------------------------------

ENDLESS = 10**6


def begin(pool: Pool, **options: Any) -> Any:
    """Start a training without an end; return its future when it has made steps."""
    data = options.pop("data", samples())
    settings = {"mini_batch_size": 20, "max_epochs": ENDLESS, "verbose": False, **options}
    asked = TrainingOptions(execution_environment="parallel", **settings)
    future = train(mlp(), data, nn.CrossEntropyLoss(), asked, pool=pool, wait=False)
    wait_until(lambda: len(future.metrics) > 20 or future.done(), 60, "the first steps")
    return future


def die_once(mark: str, number: int, net: Any, batch: Any) -> Any:
    """Run a network; rank 1 is killed at a batch by number, unless that has happened."""
    if os.environ["RANK"] == "1" and net.training:
        path = Path(mark)
        count = int(path.read_text()) if path.exists() else 0
        path.write_text(str(count + 1))
        if count == number:
            Path(mark + ".died").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
    return net(batch[0]), batch[1]
