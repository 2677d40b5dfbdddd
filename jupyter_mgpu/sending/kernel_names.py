"""The kernel's names that a cell needs: those it reads, and those its functions read."""

import importlib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jupyter_mgpu.on_engine.namespace.bindings import ATOMS
from jupyter_mgpu.on_engine.namespace.names import RESERVED, is_user_name
from jupyter_mgpu.packing.faults import find_fault
from jupyter_mgpu.packing.fingerprint import Fingerprint, take_fingerprint
from jupyter_mgpu.packing.frames import describe_fault
from jupyter_mgpu.packing.handles import HandleTable

_CONSTANT = (*ATOMS, str, bytes, types.ModuleType)


@dataclass(slots=True)
class KernelNames:
    """Names of the kernel and what they look like now.

    Attributes:
        values: What the kernel has, in the order in which it was found.
        fingerprints: Of each value; None for one that cannot change inside.
        faults: Why a value cannot be sent.
        reserved: Names of the kernel that the engines have their own of.
        read: All names that were followed, also those the kernel does not have.
    """

    values: dict[str, Any] = field(default_factory=dict)
    fingerprints: dict[str, Fingerprint | None] = field(default_factory=dict)
    faults: dict[str, Exception] = field(default_factory=dict)
    reserved: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)

    def add_modules(self, modules: Mapping[str, str]) -> None:
        """Add modules that cells of the engines imported, for an engine that is new."""
        for name in self.read & modules.keys() - self.values.keys() - RESERVED:
            self.values[name] = ModuleReference(modules[name])
            self.fingerprints[name] = None


class ModuleReference:
    """Pickles as a module that the kernel itself has not imported.

    Args:
        name: The module's full name.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self._name,)


def collect(
    names: Iterable[str],
    user_ns: dict[str, Any],
    handles: HandleTable,
    *,
    hidden: Mapping[str, Any],
    read_by: Mapping[str, frozenset[str]],
) -> KernelNames:
    """Follow names, and the globals that their functions read, as far as they lead.

    Args:
        names: What the cell reads.
        user_ns: The kernel's namespace.
        handles: The kernel's tensors and arrays by number.
        hidden: Names that the shell put there itself, with its values.
        read_by: What functions read that exist on the engines only.
    """
    found = KernelNames()
    waiting = sorted(names, reverse=True)
    while waiting:
        name = waiting.pop()
        if name in found.read or not is_user_name(name):
            continue
        found.read.add(name)
        waiting.extend(sorted(read_by.get(name, ()), reverse=True))
        if name not in user_ns or (name in hidden and hidden[name] is user_ns[name]):
            continue
        if name in RESERVED:
            found.reserved.add(name)
            continue
        fingerprint = _look_at(name, user_ns, handles, found)
        if fingerprint is not None:
            waiting.extend(sorted(fingerprint.globals_read, reverse=True))
    return found


def _look_at(
    name: str, user_ns: dict[str, Any], handles: HandleTable, found: KernelNames
) -> Fingerprint | None:
    value = user_ns[name]
    fingerprint = None
    if not isinstance(value, _CONSTANT):
        try:
            fingerprint = take_fingerprint(value, user_ns, handles)
        except Exception as error:  # noqa: BLE001 - a user's __reduce__ may raise anything
            found.faults[name] = error
    found.values[name] = value
    found.fingerprints[name] = fingerprint
    return fingerprint


def fault_message(
    name: str, error: Exception, user_ns: dict[str, Any], handles: HandleTable
) -> str:
    """Say that a name cannot be sent, which part of it, and why."""

    def try_to_dump(part: Any) -> None:
        take_fingerprint(part, user_ns, handles)

    fault = describe_fault(find_fault((user_ns[name],), try_to_dump, (name,)), error)
    return (
        f"The cell reads {name!r}, which cannot be sent to the engines: {fault}. "
        "Make it in the cell itself."
    )
