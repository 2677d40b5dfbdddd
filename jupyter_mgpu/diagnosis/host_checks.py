"""Checks of the platform, the packages and the limits of machine and container."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from jupyter_mgpu import host
from jupyter_mgpu.diagnosis.report import Check, failed, passed, skipped
from jupyter_mgpu.errors import LeaseError
from jupyter_mgpu.leases import LeaseBook
from jupyter_mgpu.nvml import Inventory
from jupyter_mgpu.nvml.health import read_versions

SHARED_MEMORY = Path("/dev/shm")
_PACKAGES = ("ipyparallel", "ipykernel", "torch", "nvidia-ml-py")
_TORCH_CUDA = re.compile(r"^cuda\b[^=]*=\s*(?:'([^']+)'|\"([^\"]+)\"|None)", re.MULTILINE)
_ENOUGH_SHARED_BYTES = host.BYTES_PER_GIB
_ENOUGH_FILES = 1024
_ENOUGH_PROCESSES = 1024
_CONNECT_TIMEOUT_S = 2.0


def check_platform() -> Check:
    """Look at the operating system and the versions of what matters."""
    told = ", ".join(f"{package} {_version(package)}" for package in _PACKAGES)
    finding = (
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, {told}."
    )
    if sys.platform != "linux":
        return failed("platform", finding, "GPU pools need Linux; CPU pools run here as well.")
    return passed("platform", finding)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def check_torch(inventory: Inventory) -> Check:
    """Compare torch's CUDA build with the driver, without importing torch."""
    name = "torch and the driver"
    found = _torch_cuda()
    if found is None:
        return skipped(name, "torch is not installed.")
    if not inventory.gpus:
        return skipped(name, f"torch is {_build(found)}; there is no GPU.")
    if not found:
        return failed(
            name,
            "torch is a CPU build, so it uses none of the GPUs.",
            "Install a CUDA build of torch, as pytorch.org says for your platform.",
        )
    supported = read_versions().cuda
    if supported is None:
        return skipped(
            name, f"torch is {_build(found)}; the driver does not tell what it supports."
        )
    finding = (
        f"torch is {_build(found)}; the driver supports up to CUDA {supported[0]}.{supported[1]}."
    )
    # Within one major version newer builds run on older drivers.
    if int(found.split(".")[0]) > supported[0]:
        return failed(name, finding, "Update the driver, or install torch for an older CUDA.")
    return passed(name, finding)


def _build(cuda: str) -> str:
    return f"built for CUDA {cuda}" if cuda else "a CPU build"


def _torch_cuda() -> str | None:
    """Read the CUDA version that torch was built for; empty for a CPU build, None without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    try:
        text = (Path(next(iter(spec.submodule_search_locations))) / "version.py").read_text()
    except OSError:
        return None
    match = _TORCH_CUDA.search(text)
    return (match[1] or match[2] or "") if match else None


def check_shared_memory() -> Check:
    """Look at the size of /dev/shm, which containers make small."""
    name = "shared memory"
    try:
        usage = shutil.disk_usage(SHARED_MEMORY)
    except OSError:
        return skipped(name, f"{SHARED_MEMORY} is not there.")
    finding = f"{SHARED_MEMORY} has {_size(usage.total)}, {_size(usage.free)} of it free."
    if usage.free < _ENOUGH_SHARED_BYTES:
        return failed(
            name,
            f"{finding} DataLoader workers and NCCL may crash.",
            "Start the container with --shm-size=8g or --ipc=host, or delete files there.",
        )
    return passed(name, finding)


def check_open_files() -> Check:
    """Look at how many files a process may open."""
    name = "open files"
    try:
        import resource
    except ImportError:
        return skipped(name, "This platform has no such limit.")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _ENOUGH_FILES:
        return failed(
            name,
            f"A process may open {soft} files.",
            f"Run `ulimit -n {max(_ENOUGH_FILES, min(hard, 65536))}` before Jupyter starts.",
        )
    return passed(name, f"A process may open {_limit(soft)} files.")


def check_loopback() -> Check:
    """Look whether processes of this machine can connect to each other."""
    name = "loopback"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_CONNECT_TIMEOUT_S)
            address = server.getsockname()
            with socket.create_connection(address, _CONNECT_TIMEOUT_S):
                server.accept()[0].close()
    except OSError as error:
        return failed(
            name,
            f"A connection to 127.0.0.1 fails: {error}.",
            "Run `ip link set lo up`, and let the firewall pass 127.0.0.1.",
        )
    return passed(name, "127.0.0.1 accepts connections.")


def check_host_name() -> Check:
    """Look whether the host's own name resolves, since gloo looks it up."""
    name = "host name"
    own = socket.gethostname()
    try:
        found = socket.getaddrinfo(own, None)
    except OSError as error:
        return failed(
            name,
            f"{own} does not resolve ({error}), so collectives may not find this machine.",
            f"Add the line `127.0.1.1 {own}` to /etc/hosts, or set GLOO_SOCKET_IFNAME=lo.",
        )
    return passed(name, f"{own} is {found[0][4][0]}.")


def check_cgroup() -> Check:
    """Look at cores and memory that the container grants."""
    name = "cores and memory"
    quota, limit = host.cpu_quota(), host.memory_limit_bytes()
    available = host.available_memory_bytes()
    finding = (
        f"{os.cpu_count()} cores, quota {f'{quota:g} cores' if quota else 'none'}; "
        f"memory limit {_size(limit) if limit else 'none'}, {_size(available)} available. "
        f"Without GPUs a pool has {host.default_cpu_count().reason}"
    )
    if available < host.BYTES_PER_GIB or (quota is not None and quota < 1):
        step = "Give the container more memory or cores: an engine needs about 1 GiB and a core."
        return failed(name, finding, step)
    return passed(name, finding)


def check_processes() -> Check:
    """Look at how many processes and threads may run."""
    name = "processes"
    limits = [limit for limit in (host.pids_limit(), _own_process_limit()) if limit is not None]
    if not limits:
        return passed(name, "no limit.")
    if min(limits) < _ENOUGH_PROCESSES:
        return failed(
            name,
            f"{min(limits)} processes and threads may run; each engine has dozens of threads.",
            f"Start the container with --pids-limit {4 * _ENOUGH_PROCESSES}, or raise `ulimit -u`.",
        )
    return passed(name, f"{min(limits)} processes and threads may run.")


def _own_process_limit() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return None if soft == resource.RLIM_INFINITY else soft


def check_leases() -> Check:
    """Look whether GPUs can be leased on this host."""
    name = "GPU leases"
    try:
        book = LeaseBook()
        held = [f"{lease.gpu_uuid} by {lease.holder}" for lease in book.live()]
    except (LeaseError, OSError) as error:
        return failed(name, str(error), "Two notebooks could take the same GPU until then.")
    return passed(name, f"kept in {book.folder}; {'; '.join(held) or 'none is held'}.")


def _size(number: int) -> str:
    if number < host.BYTES_PER_GIB:
        return f"{number / 2**20:.0f} MiB"
    return f"{number / host.BYTES_PER_GIB:.1f} GiB"


def _limit(number: int) -> str:
    return str(number) if 0 <= number < 2**62 else "any number of"


def checks_of_host(inventory: Inventory) -> list[tuple[str, Callable[[], Check]]]:
    """List the checks with their names, none of them run yet."""
    return [
        ("platform", check_platform),
        ("torch and the driver", lambda: check_torch(inventory)),
        ("GPU leases", check_leases),
        ("cores and memory", check_cgroup),
        ("shared memory", check_shared_memory),
        ("open files", check_open_files),
        ("processes", check_processes),
        ("loopback", check_loopback),
        ("host name", check_host_name),
    ]
