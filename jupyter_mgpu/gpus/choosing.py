"""Chooses the devices of a pool's engines, and leases them, while no other pool chooses.

request -> inventory, mask -> [host-wide lock: leases, readings -> devices -> claims] -> slots
"""

from collections.abc import Sequence

from jupyter_mgpu import host
from jupyter_mgpu.devices import Device, listed, parse_gpus, select_devices
from jupyter_mgpu.errors import GpuBusyError, SelectionError
from jupyter_mgpu.gpus.pinning import CPU_ENVIRONMENT, Mask, read_mask
from jupyter_mgpu.gpus.request import Request
from jupyter_mgpu.gpus.slots import Choice, Slot, make_slots
from jupyter_mgpu.gpus.usage import Usage, read_usages
from jupyter_mgpu.leases import LeaseBook
from jupyter_mgpu.nvml import NO_LIBRARY, Inventory, read_inventory

NO_GPUS = "none"
"""Asked for in place of GPUs by the description of a host."""
WAYS_OUT = "Choose other GPUs, wait for them with --wait, or share them with --share."


def choose(request: Request, book: LeaseBook | None = None, *, takes_leases: bool = True) -> Choice:
    """Choose and lease the devices for a pool.

    A GPU is free without a live lease, without a compute process of somebody else, and with less
    than 500 MiB in use where the driver lists no process. The notebook's own GPU counts as free,
    comes last and is told.

    Args:
        request: What is wanted.
        book: The leases; this host's by default.
        takes_leases: False only to see what could be had, as another process will lease it.

    Raises:
        SelectionError: If the request cannot be met on this machine.
        GpuBusyError: If it could be met, but others use the GPUs; it names them.
    """
    check_request(request)
    inventory = read_inventory()
    if request.gpus == NO_GPUS:
        return _plan_cpus(request, inventory, [])
    mask = read_mask(inventory)
    if not mask.devices:
        return _choose_cpus(request, inventory, mask)
    book = book or LeaseBook()
    with book.choosing():
        usages = read_usages(_candidates(request, mask, inventory), book.live(), request.kernel)
        picked = _pick(request, usages, mask, inventory)
        sentences = _sentences(request, picked, usages, mask)
        if not host.is_host_pid_namespace():
            sentences.append(
                "In a container, pools of other containers are recognised by their GPU processes "
                f"alone, unless {book.folder} is shared with them."
            )
        # Last: nothing that an interrupt could hit may lie between the leases and their choice.
        chosen = [usage.device for usage in picked]
        slots = make_slots(request, chosen, inventory, book if takes_leases else None)
        return Choice(slots, tuple(sentences), inventory)


def check_request(request: Request) -> None:
    """Refuse a request that makes no sense on any machine.

    Raises:
        SelectionError: It says which part.
    """
    if request.smallest < 1:
        raise SelectionError(f"{request.smallest} engines were asked for. Ask for 1 or more.")
    if request.largest is not None and request.largest < request.smallest:
        raise SelectionError(
            f"{request.smallest}:{request.largest} engines were asked for, but the first number "
            "is the least that will do."
        )
    if request.visible not in ("own", "pool"):
        raise SelectionError(f'visible={request.visible!r} was asked for; use "own" or "pool".')
    if request.per_gpu < 1 or request.gpus_per_engine < 1:
        raise SelectionError("--per-gpu and --gpus-per-engine need a number of at least 1.")
    if request.per_gpu > 1 and request.gpus_per_engine > 1:
        raise SelectionError(
            "--per-gpu and --gpus-per-engine exclude each other: either several engines share "
            "a GPU, or an engine has several."
        )


def _choose_cpus(request: Request, inventory: Inventory, mask: Mask) -> Choice:
    why = mask.sentence if inventory.trouble is None else str(inventory.trouble)
    if request.gpus is not None:
        parse_gpus(request.gpus)
        raise SelectionError(
            f"--gpus {request.gpus} was asked for, but no GPU can be used. {why} "
            "Without --gpus the engines run on the CPU."
        )
    # Having no driver is nothing to mend on a machine without GPUs, so no next step here.
    if inventory.trouble == NO_LIBRARY:
        why = inventory.trouble.why
    told = [f"The engines run on the CPU. {why}"]
    if mask.sentence and inventory.trouble is not None:
        told.append(mask.sentence)
    return _plan_cpus(request, inventory, told)


def _plan_cpus(request: Request, inventory: Inventory, sentences: list[str]) -> Choice:
    number = request.largest
    if number is None or isinstance(request.n, tuple):
        default = host.default_cpu_count()
        number = max(request.smallest, min(number or default.num_engines, default.num_engines))
        sentences.append(default.reason)
    ranks = range(request.first_rank, request.first_rank + number)
    slots = tuple(Slot(rank, (), (), dict(CPU_ENVIRONMENT)) for rank in ranks)
    return Choice(slots, tuple(sentences), inventory)


def _candidates(request: Request, mask: Mask, inventory: Inventory) -> Sequence[Device]:
    if request.among is None:
        return mask.devices
    return _select_named(request.among, mask, inventory)


def _pick(
    request: Request, usages: Sequence[Usage], mask: Mask, inventory: Inventory
) -> list[Usage]:
    if request.gpus is not None:
        return _pick_named(request, request.gpus, usages, mask, inventory)
    return _pick_free(request, usages, mask)


def _pick_named(
    request: Request, gpus: str, usages: Sequence[Usage], mask: Mask, inventory: Inventory
) -> list[Usage]:
    selected = _select_named(gpus, mask, inventory)
    by_device = {usage.device: usage for usage in usages}
    _check_number(request, gpus, len(selected))
    picked = [by_device[device] for device in selected]
    busy = [usage.clause for usage in picked if usage.holders]
    if busy and not request.share:
        raise GpuBusyError(f"{'; '.join(busy)}. {WAYS_OUT}", holders=busy)
    return picked


def named(gpus: str) -> list[Device]:
    """Return the devices that `--gpus` names, whoever uses them.

    Raises:
        SelectionError: If one of them is not there, or hidden from this notebook.
    """
    inventory = read_inventory()
    mask = read_mask(inventory)
    if not mask.devices:
        _choose_cpus(Request(gpus=gpus), inventory, mask)
    return _select_named(gpus, mask, inventory)


def _select_named(gpus: str, mask: Mask, inventory: Inventory) -> list[Device]:
    requested = parse_gpus(gpus, inventory.devices)
    for gpu in inventory.unusable:
        if gpu.index in requested or gpu.uuid in requested:
            raise SelectionError(
                f"GPU {gpu.index} cannot be used: {gpu.reason}. Choose from: "
                f"{listed(mask.devices)}."
            )
    selected = select_devices(requested, inventory.devices)
    for device in selected:
        if device not in mask.devices:
            raise SelectionError(
                f"{device.label} is hidden from this notebook: {mask.sentence} Choose from: "
                f"{listed(mask.devices)}."
            )
    return selected


def _check_number(request: Request, gpus: str, num_gpus: int) -> None:
    if num_gpus % request.gpus_per_engine:
        raise SelectionError(
            f"--gpus {gpus} names {num_gpus} GPUs, which {request.gpus_per_engine} GPUs per "
            "engine do not divide."
        )
    num_engines = request.num_engines(num_gpus)
    largest = request.largest
    if largest is not None and not request.smallest <= num_engines <= largest:
        asked = f"{request.smallest} to {largest}" if isinstance(request.n, tuple) else largest
        raise SelectionError(
            f"{asked} engines were asked for, but --gpus {gpus} makes {num_engines}. "
            "Leave one of the two out."
        )


def _pick_free(request: Request, usages: Sequence[Usage], mask: Mask) -> list[Usage]:
    candidates = [usage for usage in usages if request.share or not usage.holders]
    candidates.sort(key=lambda usage: (len(usage.holders), usage.is_used_by_this_notebook))
    fitting = request.num_engines(len(candidates))
    number = min(request.largest or fitting, fitting)
    if number < request.smallest or number == 0:
        raise _too_few(request, len(candidates), usages, mask)
    return candidates[: request.num_gpus(number)]


def _too_few(
    request: Request, num_free: int, usages: Sequence[Usage], mask: Mask
) -> SelectionError:
    needed = request.num_gpus(request.smallest)
    engines = "1 engine needs" if request.smallest == 1 else f"{request.smallest} engines need"
    gpus = "1 GPU" if needed == 1 else f"{needed} GPUs"
    if needed > len(usages):
        return SelectionError(
            f"{engines} {gpus}, but this notebook may use {len(usages)}: "
            f"{listed(mask.devices)}. Ask for fewer, or put several engines on a GPU with "
            "--per-gpu."
        )
    busy = [usage.clause for usage in usages if usage.holders]
    return GpuBusyError(
        f"{engines} {gpus}, but {num_free} of {len(usages)} are free: {'; '.join(busy)}. "
        f"{WAYS_OUT if num_free == 0 else 'Ask for fewer, wait with --wait, or use --share.'}",
        holders=busy,
    )


def _sentences(
    request: Request, picked: Sequence[Usage], usages: Sequence[Usage], mask: Mask
) -> list[str]:
    told = [mask.sentence] if mask.sentence else []
    for usage in picked:
        if usage.is_used_by_this_notebook:
            told.append(f"{usage.device.label} is used by this notebook itself as well.")
        if usage.holders:
            told.append(f"{usage.clause} as well, and shared.")
    if request.gpus is None and request.largest is None:
        told += [f"{u.clause}, and left out." for u in usages if u not in picked]
    return told
