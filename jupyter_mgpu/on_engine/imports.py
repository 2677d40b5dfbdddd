"""Imports on an engine: hooks that run after one, and which of them Stop must not break.

A library's module that is interrupted in the middle of its import stays half made, and every
later use of it fails until the process ends. The runner's SIGINT handler asks
`in_protected_import` and tries again a little later; a user's own modules stay interruptible.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import TypeVar

Hook = Callable[[ModuleType], None]
Function = TypeVar("Function", bound=Callable[..., object])

_BOOTSTRAP = "<frozen importlib._bootstrap>"
_hooks: dict[str, list[Hook]] = {}
_protected_codes: set[CodeType] = set()


def after_import(name: str, hook: Hook) -> None:
    """Call hook(module) right after the module's body has run, or now if it was imported.

    Args:
        name: The module's full name; it is not imported by this call.
        hook: Runs once, before anybody else can use the module's names.
    """
    module = sys.modules.get(name)
    if module is not None and not _is_initializing(module):
        hook(module)
        return
    if not any(isinstance(finder, _HookFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _HookFinder())
    _hooks.setdefault(name, []).append(hook)


def protected(function: Function) -> Function:
    """Mark a short function of ours that an interrupt would leave half done, as a decorator."""
    _protected_codes.add(function.__code__)
    return function


def in_protected_import(frame: FrameType | None) -> str | None:
    """Name what must not be interrupted now, if there is anything.

    Args:
        frame: The innermost frame of the interrupted thread, as a signal handler gets it.

    Returns:
        The library module whose import is under way, or the `protected` function that runs;
        None if an interrupt may be raised here.
    """
    if frame is not None and frame.f_code.co_filename == _BOOTSTRAP:
        return "the import system"  # it may hold a lock that nobody else would ever let go
    while frame is not None:
        code = frame.f_code
        if code in _protected_codes:
            return code.co_qualname
        if code.co_filename == _BOOTSTRAP and code.co_name == "_load_unlocked":
            spec = frame.f_locals.get("spec")
            if spec is not None and _is_protected(spec.origin):
                return str(spec.name)
        frame = frame.f_back
    return None


class _HookFinder(importlib.abc.MetaPathFinder):
    """Finds a hooked module as the other finders do, and has its loader call the hooks."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _hooks:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                _hook_loader(spec)
                return spec
        return None


def _hook_loader(spec: importlib.machinery.ModuleSpec) -> None:
    loader = spec.loader
    run_body = getattr(loader, "exec_module", None)
    if loader is None or run_body is None:
        return

    def exec_module(module: ModuleType) -> None:
        run_body(module)
        if module.__name__ == spec.name:  # a loader may serve several modules
            for hook in _hooks.pop(spec.name, []):
                hook(module)

    # On the instance: the loader keeps its type, which importlib.resources and inspect look at.
    loader.exec_module = exec_module  # type: ignore[method-assign]  # see the line above


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    ours = str(Path(__file__).parent.parent)  # also where it is installed editable
    return tuple(f"{folder}/" for folder in (paths["stdlib"], paths["platstdlib"], ours))


@functools.cache
def _is_protected(origin: str | None) -> bool:
    if origin in (None, "frozen", "built-in"):
        return True
    # Not only this interpreter's: PYTHONPATH and .pth files lead to those of others.
    is_installed = "site-packages" in str(origin) or "dist-packages" in str(origin)
    return is_installed or str(origin).startswith(_library_folders())
