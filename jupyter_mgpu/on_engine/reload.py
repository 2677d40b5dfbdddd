"""Follow the kernel's surroundings, and reload modules whose files were edited."""

import ast
import importlib
import importlib.util
import os
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

# Python itself may lie under the notebook's folder, as in a home folder.
_STDLIB = sysconfig.get_paths()["stdlib"]

_original: dict[str, str | None] = {}
_applied = ""
_first_path: list[str] = []


def apply_follow(state: dict[str, Any]) -> list[str]:
    """Take over the kernel's environment variables, working folder and import path.

    Args:
        state: What `Follow.state` returned in the kernel.

    Returns:
        What could not be taken over, for the user to read. Never fatal.
    """
    global _applied
    if state["id"] == _applied:
        return []
    _apply_environ(state["environ"])
    _apply_path(state["path"], state["start_path"])
    trouble = _apply_folder(state["folder"])
    _applied = state["id"]
    return trouble


def _apply_environ(variables: dict[str, str | None]) -> None:
    for name in _original.keys() - variables.keys():  # changed back in the kernel
        _set(name, _original.pop(name))
    for name, value in variables.items():
        _original.setdefault(name, os.environ.get(name))
        _set(name, value)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    elif os.environ.get(name) != value:
        os.environ[name] = value


def _apply_path(path: list[str], start: list[str]) -> None:
    # What this engine's own start put on its path stays, after the kernel's entries. On another
    # host the libraries that the kernel began with may be others: they come from there.
    _first_path.extend([] if _first_path else sys.path)
    own = [entry for entry in sys.path if entry not in path and entry not in start]
    wanted = [*(entry for entry in path if entry not in start or entry in _first_path), *own]
    if sys.path != wanted:
        sys.path[:] = wanted
        importlib.invalidate_caches()


def _apply_folder(folder: str | None) -> list[str]:
    if folder is None:
        return []
    try:
        os.chdir(folder)
    except OSError as error:
        return [f"The engine stays in {_here()}: {folder} cannot be entered ({error.strerror})."]
    return []


def _here() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - asked before each task: a Path takes five times as long
    except FileNotFoundError:
        return "its folder, which was deleted"


class Reloader:
    """Reloads modules under the notebook's folder when their files change.

    The folder is the working folder, and those that were it before. Modules there that use a
    reloaded one are reloaded after it, and functions that were imported by name are updated.
    """

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._stamps: dict[str, tuple[types.ModuleType, str, tuple[int, int] | None]] = {}
        self._seen: tuple[int, str | None, str] | None = None

    def watch(self, folder: Path) -> None:
        """Reload modules under another folder as well."""
        self._folders.add(f"{folder}{os.sep}")

    def reload_changed(self) -> list[str]:
        """Reload the modules whose files changed since the last call.

        Returns:
            Their names, in the order in which they were reloaded.

        Raises:
            Exception: What an edited module raises when it is imported, such as a SyntaxError
                that names its file. It is raised again by each call until the file is mended.
        """
        self.note_imports()
        changed = {
            name
            for name, (module, file, stamp) in self._stamps.items()
            if _stamp(file) not in (stamp, None) and sys.modules.get(name) is module
        }
        if not changed:
            return []
        importlib.invalidate_caches()
        ordered = self._with_users(changed)
        for name in ordered:
            self._reload(name)
        return ordered

    def _with_users(self, changed: set[str]) -> list[str]:
        """Add the modules that use changed ones, directly or not; the used ones come first."""
        uses = {name: self._uses(name) for name in self._stamps}
        grown = set(changed)
        while more := {name for name in uses if uses[name] & grown} - grown:
            grown |= more
        ordered: list[str] = []

        def add(name: str, above: frozenset[str]) -> None:
            for used in sorted(uses[name] & grown - above):
                add(used, above | {name})
            if name not in ordered:
                ordered.append(name)

        for name in sorted(grown):
            add(name, frozenset({name}))
        return ordered

    def _uses(self, name: str) -> set[str]:
        module, file, _ = self._stamps[name]
        package = name if hasattr(module, "__path__") else name.rpartition(".")[0]
        return (_imported_by(file, package) & self._stamps.keys()) - {name}

    def _reload(self, name: str) -> None:
        module, file, _ = self._stamps[name]
        stamp = _stamp(file)
        before = {key: value for key, value in vars(module).items() if isinstance(value, _Function)}
        try:
            importlib.reload(module)
        except Exception as error:
            error.add_note(f"raised while {file} was loaded again because it was edited")
            raise
        self._stamps[name] = (module, file, stamp)
        for key, old in before.items():
            _update_function(old, vars(module).get(key))

    def note_imports(self) -> None:
        """Watch the modules that were imported since the last look, as their files are now."""
        # The table of modules only grows at its end: its length and last name tell of new ones.
        here = _here()
        now = (len(sys.modules), next(reversed(sys.modules), None), here)
        if now == self._seen:
            return
        self._seen = now
        self._folders.add(f"{here}{os.sep}")
        folders = tuple(self._folders)
        for name, module in list(sys.modules.items()):
            file = _file_of(name, module)
            if file is None or not file.startswith(folders) or not _may_reload(name, file):
                continue
            known = self._stamps.get(name)
            if known is None or known[0] is not module:
                self._stamps[name] = (module, file, _stamp(file))


_Function = types.FunctionType


def _update_function(old: types.FunctionType, new: Any) -> None:
    """Let a function that was imported by name before run the new code."""
    if not isinstance(new, _Function) or new is old or new.__globals__ is not old.__globals__:
        return
    if old.__closure__ is None and new.__closure__ is None:
        old.__code__ = new.__code__
        old.__defaults__ = new.__defaults__
        old.__kwdefaults__ = new.__kwdefaults__


def _imported_by(file: str, package: str) -> set[str]:
    """List the modules that a file imports, by their full names; more than those where unsure."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:  # a relative import outside a package
                continue
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def _file_of(name: str, module: Any) -> str | None:
    """Return the file of a module; None for one without, or listed under another's name."""
    if not isinstance(module, types.ModuleType):
        return None
    # Not through the module's own attributes: asking a lazy module imports it.
    own = object.__getattribute__(module, "__dict__")
    file = own.get("__file__")
    return file if isinstance(file, str) and own.get("__name__") == name else None


def _may_reload(name: str, file: str) -> bool:
    is_own = name == "__main__" or name.partition(".")[0] == __name__.partition(".")[0]
    is_installed = "site-packages" in file or "dist-packages" in file or file.startswith(_STDLIB)
    return not is_own and not is_installed


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - ten times as fast as a Path
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


_reloader = Reloader()
watch = _reloader.watch


def reload_changed() -> list[str]:
    """Reload the edited modules under the notebook's folder, as `Reloader` does."""
    return _reloader.reload_changed()


def note_imports() -> None:
    """Remember what a task has imported as it is now, so that the next one sees each edit."""
    _reloader.note_imports()
