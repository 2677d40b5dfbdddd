"""How functions and code objects of the notebook are taken apart and rebuilt."""

import builtins
import itertools
import linecache
import sys
import types
from collections.abc import Iterable
from typing import Any

from cloudpickle import cloudpickle

# CodeType takes the file name as its eleventh argument; cloudpickle puts a placeholder there.
_FILENAME_ARGUMENT = 10
# What every engine defines itself, so that the kernel's are never sent.
ENGINE_NAMES = frozenset({"rank", "world_size", "device"})
_SHELL_NAMES = frozenset({"get_ipython", "In", "Out", "exit", "quit"})
_MODULE_NAMES = ("__package__", "__name__", "__path__", "__file__")

_engine_globals: dict[str, Any] = {}


def set_engine_globals(user_ns: dict[str, Any]) -> None:
    """Name the namespace from which functions that arrive take rank, world_size and device."""
    global _engine_globals
    _engine_globals = user_ns


def reduce_code(code: types.CodeType, sources_sent: set[str] | None) -> tuple[Any, ...]:
    """Reduce a code object, with its cell's source the first time that cell is seen.

    Args:
        code: The code object.
        sources_sent: File names whose source this stream already carries; added to. None: the
            stream carries no sources.
    """
    arguments = list(cloudpickle._code_reduce(code)[1])  # noqa: SLF001 - the door to cloudpickle
    filename = code.co_filename
    arguments[_FILENAME_ARGUMENT] = filename
    source = None
    if sources_sent is not None and filename not in sources_sent:
        sources_sent.add(filename)
        source = cell_source(filename)
    return make_code, (source, *arguments)


def cell_source(filename: str) -> str | None:
    """Find the source of a file that exists in memory only, such as a notebook cell."""
    entry = linecache.cache.get(filename)
    # IPython registers cells without a modification time, so that they are never dropped.
    if entry is None or len(entry) != 4 or entry[1] is not None:
        return None
    return "".join(entry[2])


def make_code(source: str | None, *arguments: Any) -> types.CodeType:
    """Rebuild a code object, and register its cell's source for tracebacks and inspect."""
    filename = arguments[_FILENAME_ARGUMENT]
    if source is not None and source != cell_source(filename):
        lines = source.splitlines(keepends=True)
        linecache.cache[filename] = (len(source), None, lines, filename)
    return types.CodeType(*arguments)


def reduce_function(
    function: types.FunctionType, shared_globals: dict[int, dict[str, Any]]
) -> tuple[Any, ...]:
    """Reduce a function by value, with the globals that it uses.

    Args:
        function: The function.
        shared_globals: By the id of a function's globals, the dict that stands for them in this
            stream, so that functions that share globals here share them there.
    """
    base = shared_globals.setdefault(id(function.__globals__), {})
    if not base:
        base.update(
            {
                name: function.__globals__[name]
                for name in _MODULE_NAMES
                if name in function.__globals__
            }
        )
    used = used_globals(function)
    arguments = (function.__code__, base, empty_closure(function))
    return make_function, arguments, function_state(function, used), None, None, set_function_state


def global_names(code: types.CodeType) -> Iterable[str]:
    """List the global names that a code object and those nested in it use."""
    names: Iterable[str] = cloudpickle._extract_code_globals(code)  # noqa: SLF001 - as above
    return names


def used_globals(function: types.FunctionType) -> dict[str, Any]:
    """Return the globals that travel with a function by value."""
    known = function.__globals__
    names = [name for name in global_names(function.__code__) if name in known]
    if known.get("__name__") == "__main__":
        left_out = ENGINE_NAMES | _SHELL_NAMES
        names = [name for name in names if name not in left_out]
    return {name: known[name] for name in names}


def empty_closure(function: types.FunctionType) -> tuple[types.CellType, ...] | None:
    """Make empty cells for a function's closure, to be filled once the function exists."""
    if function.__closure__ is None:
        return None
    return tuple(types.CellType() for _ in function.__closure__)


def make_function(
    code: types.CodeType,
    function_globals: dict[str, Any],
    closure: tuple[types.CellType, ...] | None,
) -> types.FunctionType:
    """Rebuild the skeleton of a function; `set_function_state` completes it."""
    if "__builtins__" not in function_globals:
        function_globals["__builtins__"] = builtins
        for name in (*ENGINE_NAMES, "get_ipython"):
            if name in _engine_globals:
                function_globals.setdefault(name, _engine_globals[name])
    return types.FunctionType(code, function_globals, None, None, closure)


def function_state(function: types.FunctionType, used: dict[str, Any]) -> tuple[Any, ...]:
    """Collect what `set_function_state` needs."""
    cells = function.__closure__ or ()
    contents = [content for content, is_empty in map(_cell_content, cells) if not is_empty]
    attributes = {
        "__name__": function.__name__,
        "__qualname__": function.__qualname__,
        "__kwdefaults__": function.__kwdefaults__,
        "__defaults__": function.__defaults__,
        "__module__": function.__module__,
        "__doc__": function.__doc__,
    }
    if function.__annotations__:
        attributes["__annotations__"] = function.__annotations__
    modules = _submodules(function.__code__, itertools.chain(used.values(), contents))
    return attributes, dict(function.__dict__), used, function.__closure__, modules


def set_function_state(function: types.FunctionType, state: tuple[Any, ...]) -> None:
    """Complete a function made by `make_function`."""
    attributes, own, used, closure, _ = state
    function.__dict__.update(own)
    function.__globals__.update(used)
    for mine, theirs in zip(function.__closure__ or (), closure or (), strict=True):
        content, is_empty = _cell_content(theirs)
        if not is_empty:
            mine.cell_contents = content
    for name, value in attributes.items():
        setattr(function, name, value)


def _cell_content(cell: types.CellType) -> tuple[Any, bool]:
    try:
        return cell.cell_contents, False
    except ValueError:  # an empty cell: a name of the enclosing function not yet assigned
        return None, True


def _submodules(code: types.CodeType, values: Iterable[Any]) -> list[types.ModuleType]:
    """Find loaded submodules that code reaches through a package, as in `concurrent.futures`.

    They travel with the function, so that they are imported on the other side as well.
    """
    found: dict[str, types.ModuleType] = {}
    for value in values:
        if not isinstance(value, types.ModuleType) or not getattr(value, "__path__", None):
            continue
        waiting = [value.__name__]
        while waiting:
            prefix = waiting.pop()
            for name in code.co_names:
                dotted = f"{prefix}.{name}"
                module = sys.modules.get(dotted)
                if module is not None and dotted not in found:
                    found[dotted] = module
                    waiting.append(dotted)
    return list(found.values())
