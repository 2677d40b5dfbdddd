"""What is changed in torch.distributed on an engine, and why.

* init_process_group: does nothing where an equal healthy group exists, replaces one that may not
  be used, uses a part of the pool's store of its own, and tells NCCL the device.
* destroy_process_group: also ends a group that may not be used, and forgives a second call.
* _new_process_group_helper and TCPStore: the sockets that they open are remembered.
* _create_c10d_store: where the ranks of a cell meet on this host, they meet in the pool's store,
  and try by which interfaces they reach each other.
* DistributedDataParallel and FullyShardedDataParallel: live objects are remembered.
"""

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from types import ModuleType
from typing import Any

from jupyter_mgpu.errors import CollectiveError
from jupyter_mgpu.on_engine import imports
from jupyter_mgpu.on_engine.collectives.groups import C10D, EngineGroups
from jupyter_mgpu.on_engine.collectives.meeting import choose_interface

_MARK = "_mgpu_patched"
_LOOK_S = 0.02


def install(groups: EngineGroups) -> None:
    """Patch torch.distributed when, or as soon as, the user's code imports it."""
    imports.after_import(C10D, _once(lambda module: _patch_c10d(module, groups)))
    imports.after_import(
        "torch.distributed.rendezvous", _once(lambda module: _patch_rendezvous(module, groups))
    )
    for module_name, class_name in (
        ("torch.nn.parallel.distributed", "DistributedDataParallel"),
        ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),
    ):
        imports.after_import(
            module_name,
            _once(lambda module, name=class_name: _remember_instances(module, name, groups)),
        )


def _once(patch: Callable[..., None]) -> imports.Hook:
    def hook(module: ModuleType) -> None:
        if not getattr(module, _MARK, False):
            patch(module)
            setattr(module, _MARK, True)

    return hook


def _patch_c10d(c10d: ModuleType, groups: EngineGroups) -> None:
    _replace(c10d, "_new_process_group_helper", _track_groups(c10d, groups))
    _replace(c10d, "init_process_group", _wrap_init(c10d, groups))
    _replace(c10d, "destroy_process_group", _wrap_destroy(c10d, groups))


def _patch_rendezvous(rendezvous: ModuleType, groups: EngineGroups) -> None:
    tracked = _tracked_store(rendezvous.TCPStore, groups)
    for name in ("torch.distributed", C10D, rendezvous.__name__):
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "TCPStore"):
            module.TCPStore = tracked  # type: ignore[attr-defined]  # torch is not typed here
    _replace(rendezvous, "_create_c10d_store", _wrap_create_store(rendezvous, groups))


def _replace(module: ModuleType, name: str, new: Callable[..., Any]) -> None:
    old = getattr(module, name)
    setattr(module, name, new)
    package = sys.modules.get("torch.distributed")
    if package is not None and getattr(package, name, None) is old:
        setattr(package, name, new)


def _track_groups(c10d: ModuleType, groups: EngineGroups) -> Callable[..., Any]:
    original = c10d._new_process_group_helper  # noqa: SLF001  init and new_group meet in it

    @functools.wraps(original)
    def helper(*args: Any, **kwargs: Any) -> Any:
        with groups.tracker.tracking("group"):
            return original(*args, **kwargs)

    return helper


def _tracked_store(original: type[Any], groups: EngineGroups) -> type[Any]:
    class TCPStore(original):  # type: ignore[misc]  # torch is not typed here
        __doc__ = original.__doc__

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            with groups.tracker.tracking("group" if groups.is_making else "store"):
                super().__init__(*args, **kwargs)

    TCPStore.__module__ = original.__module__
    TCPStore.__qualname__ = original.__qualname__
    return TCPStore


def _wrap_create_store(rendezvous: ModuleType, groups: EngineGroups) -> Callable[..., Any]:
    original = rendezvous._create_c10d_store  # noqa: SLF001  env:// and tcp:// meet in it
    signature = inspect.signature(original)

    @functools.wraps(original)
    def create_store(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs).arguments
        if _is_between_our_ranks(bound):
            return _pool_store(rendezvous, groups, bound)
        # Somebody from outside the pool is to join: nobody but rank 0 can host it.
        agent = os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        try:
            return original(*args, **kwargs)
        finally:
            if agent is not None:
                os.environ["TORCHELASTIC_USE_AGENT_STORE"] = agent

    return create_store


def _is_between_our_ranks(asked: dict[str, Any]) -> bool:
    """Say whether exactly this cell's ranks meet, wherever a tutorial's fixed port points to."""
    host = str(asked["hostname"])
    is_here = host in ("localhost", "::1", os.environ.get("MASTER_ADDR")) or host.startswith("127.")
    is_all = str(asked["world_size"]) == os.environ.get("WORLD_SIZE")
    return is_here and is_all and bool(os.environ.get("MGPU_STORE"))


def _pool_store(rendezvous: ModuleType, groups: EngineGroups, asked: dict[str, Any]) -> Any:
    """Connect to the pool's store, which no other pool's fixed port can collide with."""
    if why := os.environ.get("MGPU_APART"):
        raise CollectiveError(why)
    from torch.distributed import PrefixStore

    if 0 < len(groups.members) < int(asked["world_size"]):
        raise CollectiveError(
            f"init_process_group() waits for {asked['world_size']} ranks, but this cell runs on "
            f"{groups.describe_members()} only. Run it on all ranks, or pass rank= and world_size=."
        )
    host, _, port = os.environ["MGPU_STORE"].rpartition(":")
    store = _interruptible(
        lambda: rendezvous.TCPStore(
            host_name=host,
            port=int(port),
            world_size=asked["world_size"],
            is_master=False,
            timeout=asked["timeout"],
        ),
        groups,
    )
    own = PrefixStore(groups.next_prefix(), store)
    choose_interface(PrefixStore("mgpu-meeting", own), int(asked["rank"]), int(asked["world_size"]))
    return own


def _interruptible(make: Callable[[], Any], groups: EngineGroups) -> Any:
    """Make the store in another thread: the first one waits a second for the pool's store.

    torch's constructor tries again and again and hears neither SIGINT nor an abort.
    """
    made: Future[Any] = Future()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # noqa: BLE001  handed to the waiting thread
            made.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not wait([made], _LOOK_S).done:
        if groups.was_aborted:
            raise CollectiveError("init_process_group() was aborted before the ranks had met.")
    return made.result()


def _wrap_init(c10d: ModuleType, groups: EngineGroups) -> Callable[..., Any]:
    original = c10d.init_process_group
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        if groups.default() is not None:
            if _is_equal(c10d, groups, bound.arguments) and groups.is_healthy():
                _keep(c10d, bound.arguments)
                return
            groups.leave_default()
            groups.retire(groups.trouble or "was replaced by another one")
        _choose_device(bound.arguments)
        excepthook = sys.excepthook
        groups.is_making = True
        try:
            original(*bound.args, **bound.kwargs)
        except BaseException:
            groups.retire("was not finished")  # what is half made would be in the next one's way
            groups.trouble = "was not finished"
            raise
        finally:
            # torch wraps the hook at each call and never takes it off.
            sys.excepthook = excepthook
            groups.is_making = False
            groups.inits[groups.members] = groups.inits.get(groups.members, 0) + 1
        groups.was_made_now = True
        groups.trouble = None

    return init_process_group


def _wrap_destroy(c10d: ModuleType, groups: EngineGroups) -> Callable[..., Any]:
    original = c10d.destroy_process_group

    @functools.wraps(original)
    def destroy_process_group(group: Any = None) -> None:
        is_default = group is None or group is groups.default()
        if not is_default:
            original(group)
            return
        if groups.default() is None and groups.last_end:
            return  # it ended when the cell that used it was stopped
        groups.leave_default()
        groups.graveyard += list(c10d._world.pg_names)  # noqa: SLF001
        if groups.trouble is None:
            original(group)
        groups.retire("was destroyed")
        groups.last_end = ""
        groups.graveyard.clear()  # now: a store that rank 0 hosts must be gone when we return

    return destroy_process_group


def _remember_instances(module: ModuleType, class_name: str, groups: EngineGroups) -> None:
    wrapped = getattr(module, class_name)
    original = wrapped.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        groups.users.add(self)

    wrapped.__init__ = init


def _is_equal(c10d: ModuleType, groups: EngineGroups, wanted: dict[str, Any]) -> bool:
    group = groups.default()
    if group is None:
        return False
    world_size = wanted.get("world_size", -1)
    rank = wanted.get("rank", -1)
    world_size = int(os.environ.get("WORLD_SIZE", -1)) if world_size == -1 else world_size
    rank = int(os.environ.get("RANK", -1)) if rank == -1 else rank
    backend = wanted.get("backend")
    is_same_backend = backend is None or str(backend).lower() in (
        c10d.get_backend(group),
        c10d.get_backend_config(group),
    )
    return (group.size(), group.rank()) == (world_size, rank) and is_same_backend


def _keep(c10d: ModuleType, wanted: dict[str, Any]) -> None:
    if wanted.get("timeout") is not None:
        c10d._set_pg_timeout(wanted["timeout"])  # noqa: SLF001  a new time-out is taken over
    if c10d.get_rank() == 0:
        sys.stdout.write(
            "The process group of an earlier cell is still good; init_process_group() keeps it.\n"
        )


def _choose_device(wanted: dict[str, Any]) -> None:
    """Name this engine's GPU, so that NCCL need not guess it."""
    import torch

    if wanted.get("device_id") is not None or not torch.cuda.is_available():
        return
    backend = wanted.get("backend")
    shares_gpu = os.environ.get("MGPU_SHARES_GPU") == "1"
    if backend is None:
        wanted["backend"] = backend = "gloo" if shares_gpu else "cpu:gloo,cuda:nccl"
    if "nccl" in str(backend).lower():
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        chosen = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
        wanted["device_id"] = torch.device("cuda", chosen or local_rank)
