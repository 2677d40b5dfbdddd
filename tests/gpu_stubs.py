"""A machine with any GPUs, for tests: C stubs of libnvidia-ml and libcuda, scripted by a file.

    def test_something(gpu_machine):
        machine = gpu_machine(gpus(4))                  # environment for kernels and engines
        machine.add("process 0 pid=4242 memory=1024")   # seen at once by processes that run
        machine.python("from jupyter_mgpu.gpus import gpu_table; print(gpu_table())")

The facts that a scenario can hold are listed in stubs/scenario.h.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parent / "stubs"
PYTHON_TIMEOUT_S = 60


def gpu_uuid(index: int) -> str:
    """The UUID of a scenario's GPU, its number repeated in the first digits."""
    return f"GPU-{index:02d}{index:02d}{index:02d}{index:02d}-aaaa-bbbb-cccc-{index:012d}"


def mig_uuid(index: int, position: int) -> str:
    """The UUID of a scenario's MIG instance."""
    return (
        f"MIG-{index:02d}{position:02d}{position:02d}{position:02d}-dddd-eeee-ffff-{position:012d}"
    )


def gpu(index: int, **facts: object) -> str:
    """One line that describes a GPU; facts replace the defaults."""
    values: dict[str, object] = {
        "uuid": gpu_uuid(index),
        "name": "NVIDIA_H200",
        "bus": f"00000000:{8 * (index + 1):02X}:00.0",
        "cc": "9.0",
        "memory": 144384,
        "used": 0,
        "util": 0,
        "speed": 100,
        "temperature": 40,
        "power": 120,
        "power_limit": 700,
        **facts,
    }
    return f"gpu {index} " + " ".join(f"{key}={value}" for key, value in values.items())


def gpus(number: int) -> str:
    """A scenario with equal GPUs."""
    return "\n".join(gpu(index) for index in range(number))


def mixed_gpus() -> str:
    """Four GPUs of which CUDA's own order is 3, 1, 0, 2: the fastest first."""
    speeds = {
        0: ("RTX_A4000", 20),
        1: ("NVIDIA_L40S", 50),
        2: ("Tesla_T4", 10),
        3: ("NVIDIA_H200", 100),
    }
    return "\n".join(gpu(i, name=name, speed=speed) for i, (name, speed) in speeds.items())


def divided_gpu(index: int, parts: int) -> str:
    """A GPU in MIG mode with so many instances."""
    lines = [gpu(index, mig=1)]
    lines += [
        f"instance {index} uuid={mig_uuid(index, part)} gi={part + 1} ci=0 memory=16384 used=0 "
        f"name=NVIDIA_H200_MIG_1g.18gb"
        for part in range(parts)
    ]
    return "\n".join(lines)


class GpuMachine(dict[str, str]):
    """The environment of a process on the pretended machine, and the means to change it."""

    def __init__(self, environment: dict[str, str], scenario: Path) -> None:
        super().__init__(environment)
        self._scenario = scenario

    @property
    def lease_folder(self) -> Path:
        """Where pools on this machine keep their leases."""
        return Path(self["MGPU_LEASE_DIR"])

    def write(self, scenario: str) -> None:
        """Replace the machine, in one step for those who read it meanwhile."""
        draft = self._scenario.with_suffix(".draft")
        draft.write_text(scenario.strip() + "\n")
        draft.rename(self._scenario)

    def add(self, line: str) -> None:
        """Add one fact."""
        self.write(f"{self._scenario.read_text()}\n{line}")

    def remove(self, line: str) -> None:
        """Take a fact back."""
        self.write("\n".join(old for old in self._scenario.read_text().splitlines() if old != line))

    def start(self, code: str, **variables: str) -> "subprocess.Popen[str]":
        """Start Python code on this machine, its streams connected by pipes."""
        return subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            env={**self, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def python(self, code: str, **variables: str) -> str:
        """Run Python code on this machine and return what it printed; it must not fail."""
        with self.start(code, **variables) as process:
            try:
                output, errors = process.communicate(timeout=PYTHON_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0, errors
        return output.rstrip("\n")

    def result(self, code: str, **variables: str) -> Any:
        """Run Python code on this machine and return what it assigned to `result` (as JSON)."""
        return json.loads(
            self.python(f"{code}\nimport json; print(json.dumps(result))", **variables)
        )

    @contextlib.contextmanager
    def foreign_process(self, index: int, memory_mib: int = 1024) -> Iterator[int]:
        """Let a process that belongs to no pool use a GPU; yields its pid."""
        code = (
            "import ctypes, os; ctypes.CDLL(os.environ['MGPU_LIBCUDA']); print(flush=True); input()"
        )
        with self.start(code) as process:
            assert process.stdout is not None
            process.stdout.readline()
            line = f"process {index} pid={process.pid} memory={memory_mib}"
            self.add(line)
            try:
                yield process.pid
            finally:
                self.remove(line)
                process.send_signal(signal.SIGKILL)


CHOOSE = """
import json, os, sys
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.gpus import Request, choose, wait_for_free
def attempt(**request):
    try:
        choice = choose(Request(**request))
    except MgpuError as error:
        return {"error": type(error).__name__, "words": str(error),
                "holders": list(getattr(error, "holders", []))}
    proofs = choice.prove()
    return {
        "ranks": [slot.rank for slot in choice.slots],
        "uuids": [[device.uuid for device in slot.devices] for slot in choice.slots],
        "masks": [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in choice.slots],
        "orders": [slot.environment["CUDA_DEVICE_ORDER"] for slot in choice.slots],
        "leases": [len(slot.lease_paths) for slot in choice.slots],
        "proven": [proof.is_proven for proof in proofs],
        "sentences": list(choice.sentences),
    }
def use_this_gpu(index):
    with open(os.environ["MGPU_STUB_SCENARIO"], "a") as file:
        file.write(f"process {index} pid={os.getpid()} memory=500\\n")
"""
HOLDING = (
    CHOOSE.replace("choice = choose", "global choice; choice = choose")
    + """
print("ready", flush=True)
print(json.dumps(attempt(**json.loads(sys.stdin.readline()))), flush=True)
sys.stdin.readline()
"""
)


def choose(machine: GpuMachine, before: str = "", **request: object) -> Any:
    """Choose GPUs in a fresh process; returns what it got, or the error's words."""
    return machine.result(f"{CHOOSE}\n{before}\nresult = attempt(**{request!r})")


@contextlib.contextmanager
def other_pool(machine: GpuMachine, **request: object) -> Iterator[tuple[int, dict]]:
    """Another notebook that has chosen; yields its pid and what it got."""
    with machine.start(HOLDING) as process:
        process.stdout.readline()
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        yield process.pid, json.loads(process.stdout.readline())
        process.send_signal(signal.SIGKILL)


def build_libraries(folder: Path) -> None:
    """Build the stubs: nvml/libnvidia-ml.so.1 and cuda/libcuda.so.1 below the folder.

    Raises:
        FileNotFoundError: If there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FileNotFoundError("the GPU stubs need a C compiler")
    # Apart, so that only libnvidia-ml is found by the linker's path, as pynvml needs it.
    for source, library in (("nvml", "libnvidia-ml.so.1"), ("cuda", "libcuda.so.1")):
        target = folder / source / library
        target.parent.mkdir()
        flags = [
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            "-Werror",
            "-Wno-unused-function",
            f"-Wl,-soname,{library}",
        ]
        command = [compiler, *flags, "-o", str(target), str(SOURCES / f"{source}_stub.c")]
        subprocess.run(command, check=True, capture_output=True, text=True)


def make_machine(scenario: str, libraries: Path, folder: Path) -> GpuMachine:
    """Pretend a machine, with built libraries and an empty folder of its own."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("CUDA_")
    }
    paths = [str(libraries / "nvml"), environment.get("LD_LIBRARY_PATH", "")]
    environment |= {
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths)),
        "MGPU_LIBCUDA": str(libraries / "cuda" / "libcuda.so.1"),
        "MGPU_STUB_SCENARIO": str(folder / "scenario"),
        "MGPU_LEASE_DIR": str(folder / "leases"),
    }
    machine = GpuMachine(environment, folder / "scenario")
    machine.write(scenario)
    return machine


@pytest.fixture(scope="session")
def gpu_stub_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built stubs."""
    folder = tmp_path_factory.mktemp("gpu-stubs")
    try:
        build_libraries(folder)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture(scope="session")
def gpu_machine(
    gpu_stub_libraries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], GpuMachine]:
    """Make a machine out of a scenario: `gpu_machine(gpus(2))`. It is an environment (a dict)."""
    return lambda scenario: make_machine(
        scenario, gpu_stub_libraries, tmp_path_factory.mktemp("gpu-machine")
    )
