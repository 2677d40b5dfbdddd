"""Calls NVML in one daemon thread, with a time-out, and says what went wrong in words."""

import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType
from typing import Any, TypeVar

from jupyter_mgpu.nvml.troubles import (
    FUNCTION_NOT_FOUND,
    NO_BINDING,
    WRONG_BINDING,
    CallFailedError,
    NvmlTroubleError,
    init_trouble,
    no_answer,
    reason_of,
)

T = TypeVar("T")

CALL_TIMEOUT_S = 2.0
INIT_TIMEOUT_S = 10.0
"""nvmlInit wakes every GPU: about a second for each where persistence mode is off."""

REST_AFTER_S = 60.0
"""The session is ended when nobody has asked anything for so long."""

_LOOK_S = 0.1


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
                raise NvmlTroubleError(no_answer(self._stuck_words))
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
            raise CallFailedError(*reason_of(error)) from None
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
            raise NvmlTroubleError(init_trouble(error)) from None
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
        raise NvmlTroubleError(no_answer(self._stuck_words))


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


driver = Driver()
"""The one NVML session of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=driver.forget_thread)
