"""Pack the names of a cell in one stream, with what the engine already has by reference."""

import io
import pickle
import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.errors import PackingError
from jupyter_mgpu.on_engine.namespace import receiving
from jupyter_mgpu.packing import functions, tensors
from jupyter_mgpu.packing.contents import Content, content
from jupyter_mgpu.packing.faults import find_fault
from jupyter_mgpu.packing.frames import Frame, Place, describe_fault, dump, place_here
from jupyter_mgpu.packing.handles import HandleTable, is_array, is_tensor
from jupyter_mgpu.packing.pickler import Pickler
from jupyter_mgpu.sending.aliases import Aliases, array_offset


@dataclass(frozen=True, slots=True)
class EngineCopies:
    """What an engine has of the kernel's tensors and arrays.

    Attributes:
        contents: By handle, what was sent last.
        held: Handles that must not be overwritten, whatever the kernel holds.
        forced: Handles whose data is sent even if the kernel's is unchanged.
    """

    contents: Mapping[int, Content] = field(default_factory=dict)
    held: Collection[int] = frozenset()
    forced: Collection[int] = frozenset()


@dataclass(frozen=True, slots=True)
class PackedNames:
    """Names as frames.

    Attributes:
        frames: For `EngineNamespace.receive`.
        contents: By handle, the tensors and arrays whose data is in the frames.
    """

    frames: list[Frame]
    contents: dict[int, Content]


def pack_names(
    names: Mapping[str, Any],
    *,
    user_ns: dict[str, Any],
    handles: HandleTable,
    copies: EngineCopies,
    place: Place = place_here,
) -> PackedNames:
    """Pack names in one stream, so that what they share stays shared.

    Args:
        names: The values by name.
        user_ns: The kernel's namespace; its functions get the engine's as their globals.
        handles: The kernel's tensors and arrays by number.
        copies: What the engine has of them.
        place: Puts large frames elsewhere, as `Store.place` does.

    Raises:
        PackingError: If a part cannot be pickled; its path begins with the name.
    """

    def make(file: io.BytesIO, callback: Any = None, compact: Any = frozenset()) -> _NamePickler:
        return _NamePickler(file, callback, compact, user_ns, handles, copies)

    values = dict(names)
    try:
        pickler, stream, buffers = dump(values, make)
    except Exception as error:
        items = tuple(values.values())

        def try_to_dump(part: Any) -> None:
            make(io.BytesIO(), lambda _: False).dump(part)

        raise PackingError(
            describe_fault(find_fault(items, try_to_dump, tuple(values)), error)
        ) from error
    head = pickle.dumps(sorted(pickler.references), protocol=5)
    return PackedNames([head, *place([stream, *buffers])], pickler.contents)


class _NamePickler(Pickler):
    view = "names"

    def __init__(
        self,
        file: io.BytesIO,
        buffer_callback: Any,
        compact: frozenset[int],
        user_ns: dict[str, Any],
        handles: HandleTable,
        copies: EngineCopies,
    ) -> None:
        super().__init__(file, buffer_callback, compact)
        self._user_ns = user_ns
        self._handles = handles
        self._copies = copies
        self._aliases = Aliases(handles, copies.contents)
        self._temporary: dict[int, Any] = {}
        self.references: set[int] = set()
        self.contents: dict[int, Content] = {}

    def reduce_function(self, function: types.FunctionType) -> Any:
        """Give a function of the kernel's namespace the engine's as its globals."""
        if function.__globals__ is not self._user_ns:
            return super().reduce_function(function)
        arguments = (function.__code__, functions.empty_closure(function))
        state = functions.function_state(function, {})
        setter = functions.set_function_state
        return receiving.namespace_function, arguments, state, None, None, setter

    def reduce_tensor(self, tensor: Any) -> Any:
        """Refer to a tensor that the engine has, or send it with a number."""
        if id(tensor) in self._temporary:
            return super().reduce_tensor(tensor)
        return self._by_number(tensor)

    def reduce_other(self, obj: Any) -> Any:
        """Refer to an array that the engine has, or send it with a number."""
        return self._by_number(obj) if is_array(obj) else super().reduce_other(obj)

    def _by_number(self, obj: Any) -> Any:
        number = self._handles.number(obj)
        known = self._copies.contents.get(number)
        if known is not None and number in self._copies.held:
            return self._reference(number)
        now = content(obj)
        if known == now and number not in self._copies.forced:
            return self._reference(number)
        view = self._view(obj, number) if known is None else None
        if view is not None:
            self.contents[number] = now
            return view
        reduced = self._reduce_leaf(obj)
        if reduced is None:
            return NotImplemented
        self.contents[number] = now
        if known is None:
            return receiving.arrived, (number, *reduced)
        self.references.add(number)
        return receiving.updated, (number, *reduced)

    def _view(self, obj: Any, number: int) -> Any:
        """Reduce to a view of what the engine has, so that the two share memory there as well."""
        if is_tensor(obj):
            found = self._aliases.tensor_base(obj) if tensors.is_plain(obj) else None
            if found is not None:
                base_number, base = found
                self.references.add(base_number)
                start = base.storage_offset() * base.element_size()
                return receiving.tensor_view, (
                    number,
                    base_number,
                    start,
                    *tensors.tensor_layout(obj),
                )
        elif is_array(obj):
            found = self._aliases.array_base(obj, self.contents.__contains__)
            if found is not None:
                base_number, base = found
                if base_number not in self.contents:
                    self.references.add(base_number)
                place = (array_offset(obj, base), obj.shape, obj.strides, obj.dtype)
                return receiving.array_view, (number, base_number, *place)
        return None

    def _reference(self, number: int) -> Any:
        self.references.add(number)
        return receiving.by_handle, (number,)

    def _reduce_leaf(self, obj: Any) -> tuple[Any, tuple[Any, ...]] | None:
        reduced = NotImplemented
        if is_tensor(obj):
            reduced = tensors.reduce_tensor(obj, self.storages)
        if reduced is NotImplemented:
            reduced = obj.__reduce_ex__(5)
        if not isinstance(reduced, tuple) or len(reduced) > 3:
            return None
        for part in reduced[1]:
            if is_tensor(part):  # made for this stream only: a number would be wasted on it
                self._temporary[id(part)] = part
        if len(reduced) == 3:
            return receiving.with_state, reduced
        return reduced[0], reduced[1]
