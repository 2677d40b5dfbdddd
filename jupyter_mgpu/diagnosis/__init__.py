"""`doctor()`: looks at everything that a pool needs, and says what to do where it is missing."""

from collections.abc import Callable

from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.diagnosis.gpu_checks import checks_of_gpus
from jupyter_mgpu.diagnosis.host_checks import check_shared_memory, checks_of_host
from jupyter_mgpu.diagnosis.network_checks import checks_of_network
from jupyter_mgpu.diagnosis.report import Check, Outcome, Report, failed
from jupyter_mgpu.nvml import NvmlTroubleError, read_inventory

__all__ = ["Check", "Outcome", "Report", "check_shared_memory", "doctor"]

CHECK_TIMEOUT_S = 25.0
"""Longer than the CUDA driver's own time-out; a name server may take any time."""


def doctor() -> Report:
    """Check this machine and this environment for pools. Never raises, never hangs.

    Returns:
        The checks, each passed, failed or skipped, with the next step.
    """
    inventory = read_inventory()
    platform, *host = checks_of_host(inventory)
    checks = [platform, *checks_of_gpus(inventory), *host, *checks_of_network(inventory)]
    return Report(tuple(_run(name, check) for name, check in checks))


def _run(name: str, check: Callable[[], Check], timeout: float = CHECK_TIMEOUT_S) -> Check:
    try:
        return call_in_thread(check, f"doctor {name}").result(timeout)
    except TimeoutError:
        step = "Look what makes this machine wait: a network file system, a name server, a driver."
        return failed(name, f"It did not end in {timeout:g} s.", step)
    except NvmlTroubleError as error:
        return failed(name, error.trouble.why, error.trouble.next_step)
    except Exception as error:  # noqa: BLE001 - a broken check must not cost the others
        return failed(name, f"It could not be checked: {error}.", "Please report this.")
