"""The namespace that `%%spmd` cells run in, and what is known about its names."""

import pickle
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jupyter_mgpu import packing
from jupyter_mgpu.on_engine.namespace.bindings import ATOMS, Bindings
from jupyter_mgpu.on_engine.namespace.names import RESERVED, analyse, is_user_name
from jupyter_mgpu.on_engine.namespace.receiving import Receiving
from jupyter_mgpu.on_engine.namespace.summary import describe
from jupyter_mgpu.packing import functions
from jupyter_mgpu.packing.contents import Content, content
from jupyter_mgpu.packing.fingerprint import take_fingerprint
from jupyter_mgpu.packing.handles import HandleTable


class EngineNamespace:
    """The user's names on one engine.

    Args:
        user_ns: The namespace itself.
        transform: Turns magics into Python, as IPython's `transform_cell`; None: they are skipped.
    """

    def __init__(
        self, user_ns: dict[str, Any], transform: Callable[[str], str] | None = None
    ) -> None:
        functions.set_engine_globals(user_ns)
        self._user_ns = user_ns
        self._transform = transform
        self._handles = HandleTable(first=-1)  # the kernel's numbers are positive
        self._contents: dict[int, Content] = {}
        self._structures: dict[str, bytes] = {}
        self._bindings = Bindings(user_ns)
        self._has_started = False
        self._is_received = True

    def receive(self, frames: Sequence[Any]) -> list[int]:
        """Define the names of a stream.

        Returns:
            Handles of tensors that the engine should have but no longer has. Then nothing was
            changed, and the stream must be sent with them.

        Raises:
            PackingError: If the stream cannot be unpacked; nothing was defined.
        """
        self._is_received = False
        references: list[int] = pickle.loads(frames[0])
        missing = [number for number in references if self._handles.get(number) is None]
        if missing:
            return missing
        with Receiving(self._user_ns, self._handles) as receiving:
            values: dict[str, Any] = packing.unpack(frames[1:])
        receiving.finish()
        self._contents = {
            number: mark
            for number, mark in self._contents.items()
            if self._handles.get(number) is not None
        }
        for number, obj in receiving.arrived.items():
            self._contents[number] = content(obj)
        self._user_ns.update(values)
        for name, value in values.items():
            self._structures[name] = self._structure(value)[0]
            self._bindings.see(name)
        self._is_received = True
        return []

    def changed(self, names: Iterable[str]) -> set[str]:
        """Find the names whose objects were changed inside since they were received."""
        return {name for name in names if name in self._user_ns and self._is_changed(name)}

    def _is_changed(self, name: str) -> bool:
        expected = self._structures.get(name)
        if expected is None:
            return True
        structure, leaves = self._structure(self._user_ns[name])
        if structure != expected:
            return True
        for number in leaves:
            obj = self._handles.get(number)
            if obj is not None and content(obj) != self._contents.get(number):
                return True
        return False

    def _structure(self, value: Any) -> tuple[bytes, tuple[int, ...]]:
        if type(value) in ATOMS:
            return repr(value).encode(), ()
        try:
            found = take_fingerprint(value, self._user_ns, self._handles)
        except Exception:  # noqa: BLE001 - what no longer pickles here was changed here
            return b"", ()
        return found.structure, found.leaves

    def before_cell(self) -> None:
        """Note what the names are bound to before a cell runs."""
        self._bindings.look()
        self._has_started = True

    def after_cell(self, source: str, *, failed: bool = False) -> dict[str, Any]:
        """Say what a cell rebound and deleted, which names there are, and whether it had them.

        Called also where the cell did not run, because its names could not be received.

        Args:
            source: The cell as it was typed.
            failed: It ended by an error, so that its text does not say what it bound.
        """
        rebound: set[str] = set()
        deleted: set[str] = set()
        if self._has_started:
            cell = analyse(source, self._transform)
            rebound, deleted = self._bindings.changes(cell, failed=failed)
            self._has_started = False
        for name in rebound | deleted:
            self._structures.pop(name, None)
        received, self._is_received = self._is_received, True
        return {
            "rebound": sorted(rebound - RESERVED),
            "deleted": sorted(deleted - RESERVED),
            "modules": self._modules(rebound),
            "names": self.names(),
            "received": received,
        }

    def _modules(self, names: Iterable[str]) -> dict[str, str]:
        values = {name: self._user_ns.get(name) for name in names}
        return {
            name: value.__name__
            for name, value in values.items()
            if isinstance(value, types.ModuleType) and value.__name__ in sys.modules
        }

    def names(self) -> list[str]:
        """List the user's names."""
        return sorted(
            name for name in list(self._user_ns) if is_user_name(name) and name not in RESERVED
        )

    def summary(self, names: Iterable[str] | None = None) -> dict[str, dict[str, Any] | None]:
        """Describe values by name, None for names that do not exist. Never raises, never waits.

        Args:
            names: Which; all of the user's by default.
        """
        wanted = self.names() if names is None else names
        return {
            name: describe(self._user_ns[name]) if name in self._user_ns else None
            for name in wanted
        }

    def get(self, name: str) -> Any:
        """Return the value of a name.

        Raises:
            NameError: If the engine has no such name.
        """
        if name not in self._user_ns:
            raise NameError(f"name {name!r} is not defined on this engine", name=name)
        return self._user_ns[name]

    def set_value(self, name: str, value: Any) -> None:
        """Bind a name."""
        self._user_ns[name] = value
        self._structures.pop(name, None)
        self._bindings.see(name)

    def delete(self, name: str) -> None:
        """Unbind a name, if it is bound."""
        self._user_ns.pop(name, None)
        self._structures.pop(name, None)
        self._bindings.see(name)
