"""Cheap marks of what a tensor or an array holds, to see that it was changed in place.

What is seen: every in-place change that torch counts, and every changed byte of arrays up to 64 MiB
and of CPU tensors up to 64 KiB. Of larger arrays 64 pieces are compared, of larger CPU tensors 16:
an array of more than 64 MiB changed at a few places only, a large tensor so changed through
`.data` or a NumPy view, and a CUDA tensor changed through `.data` are not seen.
"""

import hashlib
import sys
from typing import Any

from jupyter_mgpu.packing.handles import is_array
from jupyter_mgpu.packing.tensors import storage_bytes

Content = tuple[Any, ...]

WHOLE_ARRAY_BYTES = 64 * 2**20
WHOLE_TENSOR_BYTES = 64 * 2**10
_PIECES_OF_ARRAY = 64
_PIECES_OF_TENSOR = 16
_PIECE_BYTES = 64 * 2**10
_TENSOR_PIECE_BYTES = 2**10


def content(obj: Any) -> Content:
    """Mark what a tensor or an array holds now; equal marks mean that it is unchanged."""
    return _array_content(obj) if is_array(obj) else _tensor_content(obj)


def _array_content(array: Any) -> Content:
    numpy = sys.modules["numpy"]
    if not array.size:
        return (array.shape, array.dtype.str)
    view = memoryview(array.ravel(order="K").view(numpy.uint8))
    return (array.shape, array.strides, array.dtype.str, array_digest(view))


def array_digest(view: memoryview) -> bytes:
    """Digest an array's bytes: all up to 64 MiB, pieces beyond."""
    return _digest(view, WHOLE_ARRAY_BYTES, _PIECES_OF_ARRAY, _PIECE_BYTES)


def _tensor_content(tensor: Any) -> Content:
    torch = sys.modules["torch"]
    try:
        mark: Content = (tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)
    except RuntimeError:  # a lazy module's parameter, which has no shape yet
        return ("uninitialized",)
    try:
        version = tensor._version  # noqa: SLF001 - torch's documented counter has this name
    except RuntimeError:  # inference tensors have no counter
        version = 0
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return (*mark, version)  # a class with rules of its own may have no memory at all
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return (*mark, str(tensor.device), version, _data_pointer(tensor))
    try:
        view = _tensor_bytes(tensor)
    except (RuntimeError, ValueError):  # no storage of its own, such as nested tensors
        return (*mark, version)
    digest = _digest(view, WHOLE_TENSOR_BYTES, _PIECES_OF_TENSOR, _TENSOR_PIECE_BYTES)
    if view.nbytes <= WHOLE_TENSOR_BYTES:
        return (*mark, tensor.stride(), digest)
    return (*mark, tensor.stride(), digest, version)


def _tensor_bytes(tensor: Any) -> memoryview:
    if not tensor.is_contiguous():
        # In memory order where a permutation suffices, else the part of the storage in between.
        last = sum(
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        count = last + 1 if tensor.numel() else 0
    else:
        count = tensor.numel()
    start = tensor.storage_offset() * tensor.element_size()
    whole = storage_bytes(tensor.untyped_storage())
    return whole[start : start + count * tensor.element_size()]


def _data_pointer(tensor: Any) -> int:
    try:
        pointer: int = tensor.data_ptr()
    except RuntimeError:  # tensors without storage
        return 0
    return pointer


def _digest(view: memoryview, whole_bytes: int, num_pieces: int, piece_bytes: int) -> bytes:
    # SHA-1 because processors have instructions for it: three times as fast as the others here.
    digest = hashlib.sha1(usedforsecurity=False)
    if view.nbytes <= whole_bytes:
        digest.update(view)
        return digest.digest()
    last = view.nbytes - piece_bytes
    for index in range(num_pieces):
        start = last * index // (num_pieces - 1)
        digest.update(view[start : start + piece_bytes])
    return digest.digest()
