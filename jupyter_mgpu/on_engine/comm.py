"""comm: collectives for tensors, arrays, numbers and other objects, with a time-out.

    every rank               write its place on the board
    every rank               exchange a header: operation, line, what is carried
    headers differ           CollectiveError on all ranks; nothing was mixed up
    somebody is missing      CollectiveError that names who waits where for whom
    else                     the operation itself

The default process group is made at the first use. Values are never changed in place.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from jupyter_mgpu.errors import CollectiveError
from jupyter_mgpu.on_engine import process_group
from jupyter_mgpu.on_engine.collectives import values
from jupyter_mgpu.on_engine.collectives.exchange import Exchange, decode, own_gpu
from jupyter_mgpu.on_engine.collectives.groups import is_collective_failure
from jupyter_mgpu.on_engine.collectives.places import calling_line

DEFAULT_TIMEOUT_S = 300.0
_GROUP_TIMEOUT = timedelta(minutes=30)


def all_reduce(x: Any, op: str = "sum", *, timeout: float = DEFAULT_TIMEOUT_S) -> Any:
    """Combine one value per rank; every rank gets the result.

    Args:
        x: A tensor or array of the same shape and dtype on all ranks, a number, or any objects
            that can be combined. It is not changed.
        op: `sum`, `mean`, `min`, `max` or `product`.
        timeout: Seconds to wait for the other ranks.

    Returns:
        What the ranks' values combine to, in the form and on the device of x, without gradient.

    Raises:
        CollectiveError: If the ranks do not meet here in time, or with values that do not fit.
        ValueError: If op is none of the above.

    Example:
        >>> total = comm.all_reduce(loss.detach(), op="mean")
    """
    if op not in values.REDUCERS:
        raise ValueError(f"op is {op!r}, but comm.all_reduce knows: {', '.join(values.REDUCERS)}.")
    with _operation("all_reduce", timeout) as call:
        tensor = values.to_tensor(x)
        pickled = values.dump(x) if tensor is None else None
        headers = call.exchange(f"all_reduce {op}", tensor, pickled, x)
        call.demand_equal([header["form"] for header in headers])
        if tensor is None:
            return values.reduce_values(call.gather_pickles(pickled, headers), op)
        carried = values.widened(tensor).to(call.carrier(headers[0]["device"]))
        call.wait(lambda dist: dist.all_reduce(carried, _torch_op(dist, op), async_op=True))
        if op == "mean":
            return values.like(carried / call.world_size, x)
        return values.like(values.narrowed(carried, tensor, op), x)


def broadcast(x: Any = None, src: int = 0, *, timeout: float = DEFAULT_TIMEOUT_S) -> Any:
    """Give every rank the value of one rank.

    Args:
        x: The value; only that of rank src counts.
        src: Whose value it is.
        timeout: Seconds to wait for the other ranks.

    Returns:
        The value of rank src: a tensor on this rank's own device, an array, or any object.

    Raises:
        CollectiveError: If the ranks do not meet here in time.
    """
    with _operation("broadcast", timeout) as call:
        call.check_rank(src, "src")
        is_source = call.rank == src
        tensor = values.to_tensor(x) if is_source else None
        pickled = values.dump(x) if is_source and tensor is None else None
        header = call.exchange(f"broadcast {src}", tensor, pickled, x)[src]
        carried = call.load(header, tensor, pickled) if is_source else call.room(header)
        call.wait(lambda dist: dist.broadcast(carried, src, async_op=True))
        return x if is_source else call.opened(carried, header)


def gather(
    x: Any, dst: int | None = None, *, timeout: float = DEFAULT_TIMEOUT_S
) -> list[Any] | None:
    """Collect one value per rank in a list, in the order of the ranks.

    Args:
        x: This rank's value; the ranks' values may differ in shape and type.
        dst: Which rank gets the list; all of them by default.
        timeout: Seconds to wait for the other ranks.

    Returns:
        The list, or None on the ranks that do not get it.

    Raises:
        CollectiveError: If the ranks do not meet here in time.
    """
    with _operation("gather", timeout) as call:
        if dst is not None:
            call.check_rank(dst, "dst")
        tensor = values.to_tensor(x)
        pickled = values.dump(x) if tensor is None else None
        headers = call.exchange(f"gather {dst}", tensor, pickled, x)
        forms = {header["form"] for header in headers}
        if tensor is None or len(forms) > 1:  # told by the headers, so all ranks agree
            if tensor is not None or len(forms) > 1:
                pickled = values.dump(x)
                headers = call.exchange(f"gather {dst}", None, pickled, x)
            found = call.gather_pickles(pickled, headers)
        else:
            parts = call.gather_tensors(call.load(headers[call.rank], tensor, None))
            found = [call.opened(part, item) for part, item in zip(parts, headers, strict=True)]
        return found if dst in (None, call.rank) else None


def send(x: Any, dst: int, tag: int = 0, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
    """Send a value to one rank, which must `receive` it.

    Args:
        x: Any value.
        dst: The rank to send to.
        tag: Tells messages between the same ranks apart.
        timeout: Seconds to wait for the receiver.

    Raises:
        CollectiveError: If the receiver does not come in time.
    """
    with _operation("send", timeout, peer=dst) as call:
        call.check_peer(dst, "dst")
        tensor = values.to_tensor(x)
        pickled = values.dump(x) if tensor is None else None
        header = call.header("send", tensor, pickled, x)
        call.wait(lambda dist: dist.isend(header, dst, tag=tag))
        carried = call.load(decode(header), tensor, pickled)
        if carried.numel():
            call.wait(lambda dist: dist.isend(carried, dst, tag=tag))


def receive(src: int, tag: int = 0, *, timeout: float = DEFAULT_TIMEOUT_S) -> Any:
    """Receive a value that a rank sends.

    Args:
        src: The rank that sends.
        tag: As given to `send`.
        timeout: Seconds to wait for the sender.

    Returns:
        The value: a tensor on this rank's own device, an array, or any object.

    Raises:
        CollectiveError: If the sender does not come in time.
    """
    with _operation("receive", timeout, peer=src) as call:
        call.check_peer(src, "src")
        room = call.empty_header()
        call.wait(lambda dist: dist.irecv(room, src, tag=tag))
        header = decode(room)
        carried = call.room(header)
        if carried.numel():
            call.wait(lambda dist: dist.irecv(carried, src, tag=tag))
        return call.opened(carried, header)


def barrier(*, timeout: float = DEFAULT_TIMEOUT_S) -> None:
    """Wait until all ranks are here.

    Args:
        timeout: Seconds to wait for the other ranks.

    Raises:
        CollectiveError: If a rank does not come in time; says which one and where it is.
    """
    with _operation("barrier", timeout) as call:
        call.exchange("barrier", None, None, None)


@contextlib.contextmanager
def _operation(name: str, timeout: float, peer: int | None = None) -> Iterator[Exchange]:
    """Enter an operation: the group, the board, and the words for a time-out."""
    operation = f"comm.{name}"
    process_group.demand_gang(operation)
    where = calling_line(sys._getframe(2))  # noqa: SLF001  two above: our own caller
    deadline = time.monotonic() + timeout
    board = process_group.board()
    board.enter(operation, where)
    try:
        dist = _ready_group(deadline)
        yield Exchange(name, where, deadline, dist, dist.get_rank(), dist.get_world_size())
    except CollectiveError:  # the ranks met, but not with the same plans
        board.leave(operation, where)
        raise
    except RuntimeError as error:
        if not is_collective_failure(error):
            raise
        board.keep()
        own_rank = int(os.environ["RANK"])
        if time.monotonic() < deadline - 0.001:
            raise CollectiveError(
                f"Rank {own_rank} lost the others in {operation} ({where}): one of them failed, "
                "ended or was stopped. The process group is made again at its next use."
            ) from error
        ranks = [peer] if peer is not None else range(int(os.environ["WORLD_SIZE"]))
        counterpart = {"send": "comm.receive", "receive": "comm.send"}.get(name, operation)
        missing = board.missing(counterpart, [rank for rank in ranks if rank != own_rank])
        # Before the error is raised: what is in flight must not meet the next operation.
        process_group.give_up(f"timed out in {operation}")
        raise CollectiveError(
            f"Rank {own_rank} waited {timeout:g} s in {operation} ({where}) for {missing}. "
            "The process group was ended; it is made again at its next use."
        ) from None
    else:
        board.leave(operation, where)


def _ready_group(deadline: float) -> Any:
    """Return torch.distributed with a default group, which is made if there is none."""
    import torch.distributed as dist

    if process_group.trouble() is not None:
        process_group.after_interrupt()
    if not dist.is_initialized():
        left_s = max(0.1, deadline - time.monotonic())
        backend = None if own_gpu() else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=left_s))
        # The time-out was for this operation only; the user's own ones keep torch's default.
        dist.distributed_c10d._set_pg_timeout(_GROUP_TIMEOUT)  # noqa: SLF001
    return dist


def _torch_op(dist: Any, op: str) -> Any:
    return getattr(dist.ReduceOp, {"mean": "SUM"}.get(op, op.upper()))


__all__ = ["all_reduce", "barrier", "broadcast", "gather", "receive", "send"]
