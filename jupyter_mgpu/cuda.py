"""The one door to the CUDA driver: which GPUs it shows under an environment; never a context."""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ANSWER_TIMEOUT_S = 20.0
"""Longest wait for the driver in a child. cuInit takes up to seconds without persistence mode."""

# Runs in a child so that neither the library nor a broken driver touches this process.
_CHILD = """
import ctypes, json, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: a driver that hangs must not keep it
    if os.getppid() != int(sys.argv[1]):
        sys.exit(0)  # died before
def ask(name, *args):
    code = getattr(cuda, name)(*args)
    if code:
        print(json.dumps({"error": name, "code": code})); sys.exit(0)
try:
    cuda = ctypes.CDLL(os.environ.get("MGPU_LIBCUDA") or "libcuda.so.1")
except OSError as error:
    print(json.dumps({"error": "load", "why": str(error)})); sys.exit(0)
uuid_of = "cuDeviceGetUuid_v2" if hasattr(cuda, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
ask("cuInit", 0)
count = ctypes.c_int()
ask("cuDeviceGetCount", ctypes.byref(count))
found = []
for ordinal in range(count.value):
    device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
    ask("cuDeviceGet", ctypes.byref(device), ordinal)
    ask(uuid_of, ctypes.byref(raw), device)
    found.append(bytes(raw).hex())
print(json.dumps({"uuids": found}))
"""

_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE: what cuInit says under an empty mask


@dataclass(frozen=True, slots=True)
class Answer:
    """What CUDA sees under one environment.

    Attributes:
        uuids: UUIDs in CUDA's order, without the prefix `GPU-` or `MIG-`; None where unknown.
        why_unknown: One clause that says why `uuids` is None.
        labels: The GPUs as messages call them, where they were looked up.
    """

    uuids: tuple[str, ...] | None
    why_unknown: str | None = None
    labels: Sequence[str] = ()


def bare_uuid(text: str) -> str:
    """Strip `GPU-` or `MIG-`, since the driver's 16 bytes do not tell which it is."""
    return text.lower().removeprefix("mig-").removeprefix("gpu-")


def visible_uuids(
    environments: Sequence[Mapping[str, str]], timeout: float = ANSWER_TIMEOUT_S
) -> list[Answer]:
    """Ask the driver which GPUs a process started with each environment sees.

    The children run side by side: start-up of a driver takes long and hardly scales with cores.

    Args:
        environments: Complete environments.
        timeout: Seconds for all of them together.
    """
    deadline_s = time.monotonic() + timeout
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(_Child(environment)) for environment in environments]
        return [child.answer(deadline_s, timeout) for child in children]


class _Child:
    def __init__(self, environment: Mapping[str, str]) -> None:
        # -S and -I: no site-packages and no PYTHON* of the environment, which may be anything.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CHILD, str(os.getpid())],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()
        # A child stuck in the driver cannot be reaped; it must not take the caller with it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)

    def answer(self, deadline_s: float, timeout: float) -> Answer:
        try:
            text, _ = self._process.communicate(timeout=max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return Answer(None, f"the CUDA driver did not answer in {timeout:g} s")
        return _read_answer(text, self._process.returncode)


def _read_answer(text: str, exit_code: int) -> Answer:
    try:
        told = json.loads(text)
    except ValueError:
        return Answer(None, f"asking the CUDA driver ended with exit code {exit_code}")
    if "uuids" in told:
        return Answer(tuple(str(uuid.UUID(hex=raw)) for raw in told["uuids"]))
    if told["error"] == "load":
        return Answer(None, f"libcuda cannot be loaded ({told['why']})")
    if told["code"] == _NO_DEVICE:
        return Answer(())
    return Answer(None, f"{told['error']} failed with CUDA error {told['code']}")


def uuids_with_own_context() -> frozenset[str]:
    """Find the GPUs on which this very process has a CUDA context.

    Only reads flags of a library that somebody else loaded already; without it the answer is empty.
    The driver lists processes by the host's numbers, so in a container this is the only way to
    recognise oneself.
    """
    library = _loaded_libcuda()
    if library is None:
        return frozenset()
    count = ctypes.c_int()
    try:
        if library.cuDeviceGetCount(ctypes.byref(count)):  # not initialised here: no context
            return frozenset()
        found = [_uuid_if_active(library, ordinal) for ordinal in range(count.value)]
    except AttributeError:  # a library without these calls: too old, or none of NVIDIA's
        return frozenset()
    return frozenset(uuid for uuid in found if uuid is not None)


def _loaded_libcuda() -> ctypes.CDLL | None:
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    try:
        return ctypes.CDLL(
            os.environ.get("MGPU_LIBCUDA") or "libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW
        )
    except OSError:
        return None


def _uuid_if_active(library: ctypes.CDLL, ordinal: int) -> str | None:
    device, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
    raw = (ctypes.c_ubyte * 16)()
    if library.cuDeviceGet(ctypes.byref(device), ordinal):
        return None
    if library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active)):
        return None
    read_uuid = getattr(library, "cuDeviceGetUuid_v2", library.cuDeviceGetUuid)
    if not active.value or read_uuid(ctypes.byref(raw), device):
        return None
    return str(uuid.UUID(bytes=bytes(raw)))
