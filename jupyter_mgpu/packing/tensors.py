"""How torch's tensors and storages travel: raw bytes apart, views of one storage together."""

import ctypes
import pickle
import sys
from typing import Any

from jupyter_mgpu.shared_memory import is_only_reference

_device: str | None = None
_HALF = 2
_COMPACT_BYTES = 64 * 1024


def set_device(device: str | None) -> None:
    """Name the device on which CUDA tensors arrive in this process.

    Args:
        device: Such as "cuda:0". None, the default: they arrive as CPU tensors.
    """
    global _device
    _device = device


class Storages:
    """The storages that one stream has met, so that each is sent once.

    Attributes:
        compact: Addresses of storages of which only the used part is sent.
    """

    def __init__(self, compact: frozenset[int] = frozenset()) -> None:
        self.compact = compact
        self._by_address: dict[int, Any] = {}
        self._users: dict[int, list[tuple[int, int]]] = {}

    def share(self, storage: Any) -> Any:
        """Return one Python object per storage, as pickle tells objects apart by their id."""
        return self._by_address.setdefault(storage._cdata, storage)  # noqa: SLF001 - its address

    def count(self, storage: Any, used_bytes: int) -> None:
        """Note that one more tensor uses a storage."""
        address = storage._cdata  # noqa: SLF001 - its address
        self._users.setdefault(address, []).append((used_bytes, storage.nbytes()))

    def wasteful(self) -> frozenset[int]:
        """Find storages that one small view alone would drag along as a whole."""
        found = (
            address
            for address, users in self._users.items()
            if len(users) == 1
            and users[0][1] > _COMPACT_BYTES
            and users[0][0] * _HALF < users[0][1]
        )
        return frozenset(found) - self.compact


def reduce_tensor(tensor: Any, storages: Storages) -> Any:
    """Reduce a tensor: plain and Parameter ones to their storage, others by torch's own rules."""
    if not is_plain(tensor):
        return NotImplemented
    storage = tensor.untyped_storage()
    if storage._cdata in storages.compact:  # noqa: SLF001 - its address
        alone = tensor.detach().clone()
        layout = tensor_layout(alone, like=tensor)
        return rebuild_tensor, (storages.share(alone.untyped_storage()), *layout)
    storages.count(storage, tensor.numel() * tensor.element_size())
    return rebuild_tensor, (storages.share(storage), *tensor_layout(tensor))


def tensor_layout(tensor: Any, like: Any = None) -> tuple[Any, ...]:
    """Return the arguments of `rebuild_tensor` after the storage.

    Args:
        tensor: The tensor.
        like: The tensor that the rebuilt one stands for, where that is another.
    """
    torch = sys.modules["torch"]
    like = tensor if like is None else like
    return (
        tensor.dtype,
        tensor.storage_offset(),
        tuple(tensor.size()),
        tensor.stride(),
        like.requires_grad,
        type(like) is torch.nn.Parameter,
        torch._C._get_tensor_metadata(tensor) or None,  # noqa: SLF001 - conjugate, negative bits
    )


def is_plain(tensor: Any) -> bool:
    """Tell whether a tensor is its storage, dtype and layout and nothing else."""
    torch = sys.modules["torch"]
    kind = type(tensor)
    return (kind is torch.Tensor or kind is torch.nn.Parameter) and _is_plain(tensor, torch)


def _is_plain(tensor: Any, torch: Any) -> bool:
    return bool(
        tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not tensor.is_quantized
        and not tensor.is_nested
        and not getattr(tensor, "__dict__", None)  # attributes of its own: torch keeps them
        and not getattr(tensor, "_backward_hooks", None)  # torch warns that hooks are dropped
    )


def rebuild_tensor(
    storage: Any,
    dtype: Any,
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,  # noqa: FBT001 - called by pickle
    is_parameter: bool,  # noqa: FBT001 - called by pickle
    metadata: dict[str, bool] | None,
) -> Any:
    """Rebuild a tensor or Parameter on its storage."""
    import torch

    tensor = torch.empty((0,), dtype=dtype, device=storage.device)
    tensor.set_(storage, offset, size, stride)
    if metadata:
        torch._C._set_tensor_metadata(tensor, metadata)  # noqa: SLF001 - as torch's own pickling
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    if requires_grad:
        tensor.requires_grad_()
    return tensor


def reduce_storage(storage: Any, storages: Storages) -> Any:
    """Reduce a typed or untyped storage; its bytes become a buffer that may travel apart."""
    torch = sys.modules["torch"]
    if not isinstance(storage, torch.UntypedStorage):
        untyped = storages.share(storage._untyped_storage)  # noqa: SLF001 - torch offers no door
        return rebuild_typed_storage, (untyped, storage.dtype)
    if storage.device.type not in ("cpu", "cuda"):
        return NotImplemented
    is_cuda = storage.device.type == "cuda"
    return rebuild_storage, (pickle.PickleBuffer(_memory(storage)), is_cuda)


def storage_bytes(storage: Any) -> memoryview:
    """View a storage's bytes; the view keeps the storage alive. CUDA storages are copied first."""
    return memoryview(_memory(storage)).cast("B")


def _memory(storage: Any) -> Any:
    on_host = storage.cpu() if storage.device.type == "cuda" else storage
    if not on_host.nbytes():
        return bytearray()
    if not on_host.data_ptr():
        raise ValueError("A tensor has a storage without memory, so that it cannot be read.")
    array = (ctypes.c_ubyte * on_host.nbytes()).from_address(on_host.data_ptr())
    array.owner = on_host  # keeps the memory while the view lives
    array.is_alone = _is_alone
    return array


def _is_alone(array: Any) -> bool:
    """Tell whether nothing but a view of a storage's bytes refers to its memory."""
    count = getattr(sys.modules["torch"]._C, "_storage_Use_Count", None)  # noqa: SLF001 - no other
    return bool(
        count is not None
        and is_only_reference(sys.getrefcount(array.owner))
        and count(array.owner._cdata) == 1  # noqa: SLF001 - its address
        and array.owner.resizable()  # memory of torch's own, not of an array
        and not array.owner.is_shared()  # with a process
    )


def rebuild_storage(buffer: Any, is_cuda: bool) -> Any:  # noqa: FBT001 - called by pickle
    """Rebuild a storage on the buffer's memory, or on this process's own device."""
    import torch

    view = memoryview(buffer)
    if not view.nbytes:
        storage = torch.UntypedStorage(0)
    else:
        if view.readonly:
            view = memoryview(bytearray(view))
        # The tensor keeps the buffer alive, and the storage the tensor's memory.
        storage = torch.frombuffer(view, dtype=torch.uint8).untyped_storage()
    if is_cuda and _device is not None and not _device.startswith("cpu"):
        return (
            torch.empty(view.nbytes, dtype=torch.uint8, device=_device)
            .untyped_storage()
            .copy_(storage)
        )
    return storage


def rebuild_typed_storage(untyped: Any, dtype: Any) -> Any:
    """Rebuild torch's typed storage, which its own reducers expect."""
    import torch

    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def let_go_of_sparse() -> None:
    """Empty torch's list of rebuilt sparse tensors, which only `torch.load` empties."""
    rebuilt = getattr(sys.modules.get("torch._utils"), "_sparse_tensors_to_validate", None)
    if rebuilt:
        rebuilt.clear()
