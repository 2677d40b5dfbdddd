"""One operation of comm on one rank: headers first, then what they announce."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from jupyter_mgpu.errors import CollectiveError
from jupyter_mgpu.on_engine.collectives import values

_HEADER_BYTES = 512


@dataclass(slots=True)
class Exchange:
    """One operation under way on this rank."""

    name: str
    where: str
    deadline: float
    dist: Any
    rank: int
    world_size: int

    def exchange(
        self, operation: str, tensor: Any, pickled: Any, original: Any
    ) -> list[dict[str, Any]]:
        """Exchange headers; all ranks raise alike if they are not in the same operation."""
        own = self.header(operation, tensor, pickled, original)
        parts = self.gather_tensors(own)
        headers = [decode(part) for part in parts]
        if any(header["operation"] != operation for header in headers):
            _raise_mismatch(headers)
        return headers

    def demand_equal(self, forms: list[str]) -> None:
        """Raise on all ranks if their values do not fit together."""
        if len(set(forms)) > 1:
            told = ", ".join(f"rank {rank} has {form}" for rank, form in enumerate(forms))
            raise CollectiveError(
                f"comm.{self.name} needs values that fit together, but {told} ({self.where}). "
                "Give all ranks the same shape and dtype."
            )

    def header(self, operation: str, tensor: Any, pickled: Any, original: Any) -> Any:
        """Say in a tensor of fixed size what comes next."""
        torch = sys.modules["torch"]
        header = {
            "operation": operation,
            "where": self.where[-120:],
            **values.describe(tensor),
            "bytes": 0 if pickled is None else pickled.numel(),
            "is_array": tensor is not None and not values.is_tensor(original),
        }
        text = json.dumps(header).encode().ljust(_HEADER_BYTES)
        return torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.carrier("cpu"))

    def empty_header(self) -> Any:
        """Make room for a header."""
        torch = sys.modules["torch"]
        return torch.empty(_HEADER_BYTES, dtype=torch.uint8, device=self.carrier("cpu"))

    def room(self, header: dict[str, Any]) -> Any:
        """Make room for what a header announces."""
        torch = sys.modules["torch"]
        device = self.carrier(header["device"])
        if header["dtype"] is None:
            return torch.empty(header["bytes"], dtype=torch.uint8, device=device)
        return torch.empty(header["shape"], dtype=getattr(torch, header["dtype"]), device=device)

    def load(self, header: dict[str, Any], tensor: Any, pickled: Any) -> Any:
        """Put what a header announces where the group's backend can take it."""
        return (pickled if tensor is None else tensor).to(self.carrier(header["device"]))

    def opened(self, carried: Any, header: dict[str, Any]) -> Any:
        """Turn what was carried back into a value."""
        if header["dtype"] is None:
            return values.unpickle(carried)
        if header["is_array"]:
            return carried.numpy(force=True)
        return carried.to(own_device()) if header["device"] != "cpu" else carried.cpu()

    def carrier(self, device_type: str) -> Any:
        """The device on which the group's backend takes tensors of this kind of device."""
        torch = sys.modules["torch"]
        config = str(self.dist.get_backend_config()).lower()
        needs_gpu = "gloo" not in config or ("nccl" in config and device_type != "cpu")
        return own_device() if needs_gpu else torch.device("cpu")

    def gather_tensors(self, tensor: Any) -> list[Any]:
        """Collect tensors of one shape."""
        torch = sys.modules["torch"]
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        self.wait(lambda dist: dist.all_gather(parts, tensor, async_op=True))
        return parts

    def gather_pickles(self, pickled: Any, headers: list[dict[str, Any]]) -> list[Any]:
        """Collect pickles of any lengths, which the headers have told."""
        torch = sys.modules["torch"]
        longest = max(header["bytes"] for header in headers)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: pickled.numel()] = pickled
        parts = self.gather_tensors(padded.to(self.carrier("cpu")))
        return [
            values.unpickle(part[: header["bytes"]])
            for part, header in zip(parts, headers, strict=True)
        ]

    def wait(self, launch: Callable[[Any], Any]) -> None:
        """Start an operation and wait for it until the deadline."""
        left_s = max(0.001, self.deadline - time.monotonic())
        launch(self.dist).wait(timedelta(seconds=left_s))

    def check_rank(self, rank: int, name: str) -> None:
        """Refuse a rank that does not exist."""
        if not 0 <= rank < self.world_size:
            raise ValueError(
                f"{name} is {rank}, but the ranks are 0 to {self.world_size - 1} ({self.where})."
            )

    def check_peer(self, rank: int, name: str) -> None:
        """Refuse a rank that does not exist or is this one."""
        self.check_rank(rank, name)
        if rank == self.rank:
            raise ValueError(f"{name} is {rank}, which is this rank itself ({self.where}).")


def _raise_mismatch(headers: list[dict[str, Any]]) -> NoReturn:
    names = [header["operation"].split()[0] for header in headers]
    told = ", ".join(
        f"rank {rank} in comm.{header['operation'] if len(set(names)) == 1 else names[rank]} "
        f"({header['where']})"
        for rank, header in enumerate(headers)
    )
    raise CollectiveError(
        f"The ranks are in different operations: {told}. "
        "All ranks must call the same ones in the same order."
    )


def own_gpu() -> bool:
    """Say whether this engine has a GPU."""
    torch = sys.modules["torch"]
    return bool(torch.cuda.is_available())


def own_device() -> Any:
    """Return the device that this engine computes on."""
    torch = sys.modules["torch"]
    return torch.device("cuda", torch.cuda.current_device()) if own_gpu() else torch.device("cpu")


def decode(header: Any) -> dict[str, Any]:
    """Read a header that was received."""
    decoded: dict[str, Any] = json.loads(header.cpu().numpy().tobytes())
    return decoded
