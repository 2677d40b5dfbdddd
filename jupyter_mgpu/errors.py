"""Every error this package raises on purpose.

* MgpuError
  + SelectionError       the GPUs or sizes asked for cannot form a pool (also a ValueError)
    - GpuNotFoundError
    - DuplicateGpuError
    - GpuBusyError       leased by another pool, or used by a foreign process
  + ClusterError         a cluster's description is missing or wrong (also a ValueError)
  + LeaseError           the records of who holds which GPU cannot be used
  + GpuProofError        CUDA shows other GPUs than it should, or does not say which
  + PoolClosedError      the pool was shut down (also a RuntimeError)
  + QueueClosedError     a DataQueue was closed
  + AttachError          there is no kept pool of that name, or another kernel has it
  + PoolStartError       an engine did not come up; its last lines are told
    - HostUnreachableError   its host does not answer
  + EngineDiedError      an engine exited before it replied
  + SendingError         a cell cannot be sent: both sides changed a name, or a name was lost
  + PackingError         an object cannot be pickled or unpickled; its path is told (a TypeError)
  + RemoteError          a task raised something that cannot be rebuilt here
  + TaskTimeoutError     a task ran longer than its time-out (also a TimeoutError)
  + CollectiveError      a collective was aborted or timed out; who waits for whom is told
  + LoopBodyError        a `%%parfor` cell is no loop of independent iterations (a SyntaxError)
  + IntervalError        samples cannot be taken so often or so rarely (also a ValueError)
  + OwnerError           the pool's owner does not answer or refuses a request
    - OwnerSilentError   it does not answer: its kernel is stopped, hangs, or has ended

An error from a task keeps its own type: notes name the rank and the device.
"""

from collections.abc import Sequence


class MgpuError(Exception):
    """Base class: `except MgpuError` catches everything below."""


class SelectionError(MgpuError, ValueError):
    """The GPUs asked for cannot form a pool."""


class GpuNotFoundError(SelectionError):
    """A requested GPU is not on this machine.

    Attributes:
        requested: What was asked for, as the user typed it.
        available: The NVML indices that exist.
    """

    def __init__(self, requested: int | str, available: Sequence[int | str]) -> None:
        self.requested = requested
        self.available = tuple(available)
        listed = ", ".join(str(index) for index in available) or "none"
        super().__init__(
            f"GPU {requested} was requested, but this machine has: {listed}. "
            "Run %gpus to list them."
        )


class DuplicateGpuError(SelectionError):
    """The same GPU was requested for two engines."""

    def __init__(self, requested: int | str) -> None:
        self.requested = requested
        super().__init__(
            f"GPU {requested} was requested twice, but an engine needs a GPU of its own. "
            "Name each GPU once, as in --gpus 0,1."
        )


class GpuBusyError(SelectionError):
    """A requested GPU is in use by somebody else, who is named.

    Attributes:
        holders: One clause per GPU, such as "GPU 2 is used by python (pid 4242, user bob)".
    """

    def __init__(self, message: str, *, holders: Sequence[str] = ()) -> None:
        self.holders = tuple(holders)
        super().__init__(message)


class ClusterError(MgpuError, ValueError):
    """A cluster is not described, or its description is wrong."""


class PoolClosedError(MgpuError, RuntimeError):
    """The pool was shut down."""


class QueueClosedError(MgpuError):
    """A DataQueue was closed: nothing more can be put, and nothing is left to get."""


class PoolStartError(MgpuError):
    """An engine did not come up."""


class AttachError(MgpuError):
    """A kept pool cannot be attached: there is none of that name, or another kernel has it."""


class HostUnreachableError(PoolStartError):
    """A host does not answer, which may pass.

    Attributes:
        host: Its name.
    """

    def __init__(self, message: str, *, host: str) -> None:
        self.host = host
        super().__init__(message)


class EngineDiedError(MgpuError):
    """An engine exited before it replied.

    Attributes:
        rank: The rank whose engine died.
        exit_code: The process's exit code; negative for a signal; None where unknown.
    """

    def __init__(self, message: str, *, rank: int, exit_code: int | None = None) -> None:
        self.rank = rank
        self.exit_code = exit_code
        super().__init__(message)


class SendingError(MgpuError):
    """A cell cannot be sent as it stands."""


class PackingError(MgpuError, TypeError):
    """An object cannot be pickled or unpickled."""


class RemoteError(MgpuError):
    """A task raised an error that cannot be rebuilt here.

    Attributes:
        type_name: The name of the remote error's type.
    """

    def __init__(self, message: str, *, type_name: str = "") -> None:
        self.type_name = type_name
        super().__init__(message)


class TaskTimeoutError(MgpuError, TimeoutError):
    """A task ran longer than its time-out."""


class CollectiveError(MgpuError, RuntimeError):
    """A collective was aborted or timed out."""


class LoopBodyError(MgpuError, SyntaxError):
    """A `%%parfor` cell cannot run as independent iterations; its line is shown."""


class OwnerError(MgpuError):
    """The pool's owner does not answer, or refuses a request."""


class OwnerSilentError(OwnerError):
    """The pool's owner does not answer: its kernel is stopped, hangs, or has ended."""


class LeaseError(MgpuError):
    """The records that say who holds which GPU cannot be used."""


class GpuProofError(MgpuError):
    """CUDA shows an engine other GPUs than it should, or does not say which."""


class IntervalError(MgpuError, ValueError):
    """Samples cannot be taken so often or so rarely."""
