"""Calls NVML in one daemon thread, with a time-out, and says what went wrong in words."""

import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from jupyter_mgpu.errors import MgpuError

T = TypeVar("T")

CALL_TIMEOUT_S = 2.0
INIT_TIMEOUT_S = 10.0
"""nvmlInit wakes every GPU: about a second for each where persistence mode is off."""

REST_AFTER_S = 60.0
"""The session is ended when nobody has asked anything for so long."""

_LOOK_S = 0.1

NOT_SUPPORTED = "not supported"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why NVML cannot answer.

    Attributes:
        why: One sentence.
        next_step: One sentence that says what to do.
    """

    why: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.why} {self.next_step}"


class NvmlTroubleError(MgpuError):
    """NVML as a whole cannot answer; the callers in this package turn it into words."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        super().__init__(str(trouble))


class CallFailedError(MgpuError):
    """One NVML call failed.

    Attributes:
        reason: A few words, such as "not supported".
        code: NVML's return code; None if the binding itself failed.
    """

    def __init__(self, reason: str, code: int | None) -> None:
        self.reason = reason
        self.code = code
        super().__init__(reason)


NO_LIBRARY = Trouble(
    "This machine has no NVIDIA driver: libnvidia-ml.so.1 was not found.",
    "Install the driver, or start the container with GPU access (docker run --gpus all).",
)
DRIVER_NOT_LOADED = Trouble(
    "The NVIDIA driver is installed, but its kernel module is not loaded.",
    "Run `sudo modprobe nvidia`, or reboot; `dmesg | grep -i nvidia` says why it fails.",
)
VERSION_MISMATCH = Trouble(
    "The NVIDIA driver and its library have different versions, as after an upgrade.",
    "Reboot the machine, or reload the nvidia kernel modules.",
)
NO_PERMISSION = Trouble(
    "This user has no permission to talk to the NVIDIA driver.",
    "Ask for access to /dev/nvidiactl (often membership of the group `video` or `render`).",
)
NO_BINDING = Trouble(
    "The Python package nvidia-ml-py is not installed.",
    "Run `pip install nvidia-ml-py`.",
)
WRONG_BINDING = Trouble(
    "Another package than nvidia-ml-py provides the module `pynvml`.",
    "Run `pip uninstall -y pynvml nvidia-ml-py3 && pip install --force-reinstall nvidia-ml-py`.",
)
ALL_LOST = Trouble(
    "A GPU of this machine is lost: it fell off the bus.",
    "Reboot the machine; `dmesg | grep -i xid` names the GPU.",
)

# Codes of nvmlReturn_t in the NVML reference; pynvml may be too old to name all of them.
INVALID, NO_SUPPORT, PERMISSION, NOT_FOUND, FUNCTION_NOT_FOUND = 2, 3, 4, 6, 13
GPU_IS_LOST, RESET_REQUIRED, UNKNOWN_ERROR = 15, 16, 999
_INIT_TROUBLES = {
    4: NO_PERMISSION,
    9: DRIVER_NOT_LOADED,
    12: NO_LIBRARY,
    15: ALL_LOST,
    18: VERSION_MISMATCH,
}
_CALL_REASONS = {
    NO_SUPPORT: NOT_SUPPORTED,
    PERMISSION: "no permission",
    NOT_FOUND: "not found",
    8: "insufficient external power",
    FUNCTION_NOT_FOUND: "not known to this driver",
    GPU_IS_LOST: "the GPU is lost",
    RESET_REQUIRED: "the GPU needs a reset",
    18: "driver and library have different versions",
    25: "not known to this driver",
    UNKNOWN_ERROR: "unknown error of the driver",
}
_NEEDED = ("NVMLError", "nvmlInitWithFlags", "nvmlDeviceGetCount", "nvmlDeviceGetUUID")


class Driver:
    """Runs jobs that call NVML, one after the other, in one daemon thread.

    A sick driver blocks a call for ever and such a thread cannot be ended. So nobody waits for
    longer than the time-out of one call, and while the thread is stuck later jobs fail at once.
    """

    def __init__(self) -> None:
        self.forget_thread()
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]]
        self._stuck: Future[Any] | None = None
        self._stuck_words = ""
        self._call: tuple[str, float, float] | None = None
        self._nvml: ModuleType | None = None
        self._is_initialized = False
        self.session = 0
        """How often NVML was initialized: handles of an earlier session are not to be used."""

    def forget_thread(self) -> None:
        """Begin anew in a forked child: the lock may have been held by a thread that is gone."""
        self._pid = 0
        self._lock = threading.Lock()

    def run(self, job: Callable[["Driver"], T]) -> T:
        """Run a job in the NVML thread and wait for it.

        Raises:
            NvmlTroubleError: If the driver cannot be used, or does not answer in time.
            CallFailedError: If the job let one through.
        """
        return self.wait(self.begin(job))

    def begin(self, job: Callable[["Driver"], T]) -> "Future[T]":
        """Hand a job to the NVML thread without waiting for it.

        Raises:
            NvmlTroubleError: If the thread is stuck in an earlier call.
        """
        future: Future[T] = Future()
        with self._lock:
            self._ensure_thread()
            if self._stuck is not None and not self._stuck.done():
                raise NvmlTroubleError(_no_answer(self._stuck_words))
            self._stuck = None
            self._jobs.put((future, lambda: job(self)))
        return future

    def wait(self, future: "Future[T]", patience_s: float = math.inf) -> T:
        """Wait for a job.

        Args:
            future: What `begin` returned.
            patience_s: How long to wait at most.

        Raises:
            TimeoutError: If the patience is over and the driver still has time to answer.
            NvmlTroubleError: If the driver cannot be used, or does not answer in time.
            CallFailedError: If the job let one through.
        """
        deadline_s = time.monotonic() + patience_s
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                return future.result(timeout=max(0.0, min(_LOOK_S, left_s)))
            except TimeoutError:
                if future.done():
                    return future.result()
                self._give_up_if_stuck(future)
                if left_s <= 0:
                    raise

    def call(self, name: str, *args: Any, timeout: float = CALL_TIMEOUT_S) -> Any:
        """Call one function of pynvml; only inside a job.

        Raises:
            CallFailedError: With the reason in words.
        """
        nvml = self._module()
        function = getattr(nvml, name, None)
        if function is None:
            raise CallFailedError("not known to the installed nvidia-ml-py", FUNCTION_NOT_FOUND)
        self._call = (name, time.monotonic(), timeout)
        try:
            return function(*args)
        except nvml.NVMLError as error:
            raise CallFailedError(*_reason(error)) from None
        except (UnicodeDecodeError, ValueError, TypeError, AttributeError) as error:
            raise CallFailedError(f"nvidia-ml-py failed: {error}", None) from error
        except Exception as error:
            # NVMLLibraryMismatchError is an Exception, but not an NVMLError.
            if type(error).__name__ != "NVMLLibraryMismatchError":
                raise
            raise CallFailedError("nvidia-ml-py and the driver do not fit", 18) from error
        finally:
            self._call = None

    def ask(self, name: str, *args: Any) -> Any | None:
        """Call one function of pynvml; None where it fails."""
        try:
            return self.call(name, *args)
        except CallFailedError:
            return None

    def constant(self, name: str, default: int) -> int:
        """Read a constant that an old pynvml may not have."""
        return int(getattr(self._module(), name, default))

    @property
    def is_initialized(self) -> bool:
        """Whether a session is open; only inside a job."""
        return self._is_initialized

    def ensure_initialized(self) -> None:
        """Call nvmlInit unless that was done; only inside a job.

        Raises:
            NvmlTroubleError: If the driver cannot be used.
        """
        if self._is_initialized:
            # Another library of this process may have shut NVML down under us.
            with contextlib.suppress(CallFailedError):
                self.call("nvmlDeviceGetCount")
                return
        try:
            self.call("nvmlInitWithFlags", 0, timeout=INIT_TIMEOUT_S)
        except CallFailedError as error:
            self._is_initialized = False
            raise NvmlTroubleError(_init_trouble(error)) from None
        self._is_initialized = True
        self.session += 1

    def _module(self) -> ModuleType:
        if self._nvml is None:
            try:
                import pynvml
            except ImportError:
                raise NvmlTroubleError(NO_BINDING) from None
            if not all(hasattr(pynvml, name) for name in _NEEDED):
                raise NvmlTroubleError(WRONG_BINDING)
            self._nvml = pynvml
        return self._nvml

    def _ensure_thread(self) -> None:
        if self._pid == os.getpid():
            return
        # First use, or a forked child, which has neither the thread nor its driver session.
        self._pid = os.getpid()
        self._jobs = queue.SimpleQueue()
        self._stuck = None
        self._is_initialized = False
        arguments = (self._jobs, self._rest)
        threading.Thread(target=_work, args=arguments, name="mgpu-nvml", daemon=True).start()

    def _rest(self) -> None:
        """End the session: while one is open, a laptop's GPU cannot sleep."""
        if self._is_initialized:
            self._is_initialized = False
            self.ask("nvmlShutdown")

    def _give_up_if_stuck(self, future: Future[Any]) -> None:
        call = self._call
        if call is None:
            return
        name, started_s, timeout = call
        if time.monotonic() - started_s < timeout:
            return
        with self._lock:
            future.cancel()
            self._stuck = self._stuck or future
            self._stuck_words = f"The driver did not answer in {timeout:g} s ({name})."
        raise NvmlTroubleError(_no_answer(self._stuck_words))


def _work(
    jobs: "queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]]", rest: Callable[[], None]
) -> None:
    patience_s: float | None = REST_AFTER_S
    while True:
        try:
            future, job = jobs.get(timeout=patience_s)
        except queue.Empty:
            rest()
            patience_s = None
            continue
        patience_s = REST_AFTER_S
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(job())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the job
            future.set_exception(error)
        del future, job


def _no_answer(words: str) -> Trouble:
    return Trouble(
        words,
        "Look for `nvidia-smi` hanging as well; if it does, reboot the machine.",
    )


def _reason(error: Any) -> tuple[str, int | None]:
    # NVMLError is unhashable and compares badly: only its value is used.
    code = getattr(error, "value", None)
    if not isinstance(code, int):
        return str(error), None
    return _CALL_REASONS.get(code, f"NVML error {code}"), code


def _init_trouble(error: CallFailedError) -> Trouble:
    if error.code in _INIT_TROUBLES:
        return _INIT_TROUBLES[error.code]
    return Trouble(
        f"The NVIDIA driver cannot be started: {error.reason}.",
        "Run `nvidia-smi` in a terminal; it should say the same.",
    )


driver = Driver()
"""The one NVML session of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=driver.forget_thread)
