"""Mark the inside of an object, to see later whether it was changed in place.

The object is pickled as for sending, but tensors and arrays are only listed, and functions of the
notebook stand for their code: the globals that they read are names of their own.
"""

import hashlib
import io
import pickle
import types
from dataclasses import dataclass
from typing import Any

from jupyter_mgpu.packing import functions
from jupyter_mgpu.packing.contents import array_digest, content
from jupyter_mgpu.packing.handles import HandleTable, is_array
from jupyter_mgpu.packing.pickler import Pickler


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What an object looks like inside.

    Attributes:
        structure: A digest of all but the tensors and arrays.
        leaves: The handles of the tensors and arrays, in order.
        globals_read: The global names that the object's functions use.
        num_bytes: The size of all but the tensors and arrays, when pickled.
    """

    structure: bytes
    leaves: tuple[int, ...]
    globals_read: frozenset[str]
    num_bytes: int


def take_fingerprint(obj: Any, user_ns: dict[str, Any], handles: HandleTable) -> Fingerprint:
    """Take an object's fingerprint.

    Args:
        obj: The object.
        user_ns: The namespace whose functions stand for their code only.
        handles: Numbers the tensors and arrays.

    Raises:
        Exception: Whatever pickling the object raises.
    """
    found = _take(obj, user_ns, handles, by_content=False)
    if all(handles.get(number) is not None for number in found.leaves):
        return found
    # Some were made for this pickle only, as a forest's trees do: their numbers mean nothing.
    return _take(obj, user_ns, handles, by_content=True)


def _take(
    obj: Any, user_ns: dict[str, Any], handles: HandleTable, *, by_content: bool
) -> Fingerprint:
    with io.BytesIO() as stream:
        pickler = _FingerprintPickler(stream, user_ns, handles, by_content=by_content)
        pickler.dump(obj)
        digest = hashlib.sha1(stream.getbuffer(), usedforsecurity=False)
        num_bytes = stream.tell()
    pickler.clear_memo()  # what was made for this pickle only must be gone before one looks
    for buffer in pickler.buffers:
        digest.update(array_digest(buffer))
        num_bytes += buffer.nbytes
    leaves = tuple(pickler.leaves)
    return Fingerprint(digest.digest(), leaves, frozenset(pickler.globals_read), num_bytes)


class _FingerprintPickler(Pickler):
    carries_sources = False

    def __init__(
        self,
        stream: io.BytesIO,
        user_ns: dict[str, Any],
        handles: HandleTable,
        *,
        by_content: bool,
    ) -> None:
        super().__init__(stream, self._hash_apart)
        self._by_content = by_content
        self._user_ns = user_ns
        self._handles = handles
        self.buffers: list[memoryview] = []
        self.leaves: dict[int, None] = {}
        self.globals_read: set[str] = set()

    def _hash_apart(self, buffer: pickle.PickleBuffer) -> bool:
        try:
            self.buffers.append(buffer.raw())
        except BufferError:  # not contiguous
            return True
        return False

    def reduce_function(self, function: types.FunctionType) -> Any:
        """Let a function of the namespace stand for its code, and list the globals it reads."""
        if function.__globals__ is not self._user_ns:
            return super().reduce_function(function)
        self.globals_read.update(functions.global_names(function.__code__))
        no_globals: dict[str, Any] = {}
        arguments = (function.__code__, no_globals, functions.empty_closure(function))
        return functions.make_function, arguments, functions.function_state(function, {})

    def reduce_tensor(self, tensor: Any) -> Any:
        """List a tensor."""
        return self._leaf(tensor)

    def reduce_other(self, obj: Any) -> Any:
        """List an array."""
        return self._leaf(obj) if is_array(obj) else super().reduce_other(obj)

    def _leaf(self, obj: Any) -> Any:
        if self._by_content:
            return _leaf_mark, content(obj)
        number = self._handles.number(obj)
        self.leaves[number] = None
        return _leaf_mark, (number,)


def _leaf_mark(*mark: Any) -> Any:
    """Stand for a tensor or an array in the stream; never called."""
    return mark
