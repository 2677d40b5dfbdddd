"""Imports modules beside the notebook where its folder is not seen: the kernel sends them."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from jupyter_mgpu.on_engine import context, reload

VARIABLE = "MGPU_MODULES"
"""In the environment of an engine whose host does not see the notebook's folder."""


class SentModules(importlib.abc.MetaPathFinder):
    """Finds what no other finder has found.

    Args:
        folder: Where files are put; it goes with the engine.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamps: dict[str, list[int]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Ask the kernel for a module."""
        is_inside = path is None or any(str(entry).startswith(str(self._folder)) for entry in path)
        file = self._fetch(fullname) if is_inside else None
        if file is None:
            return None
        if file.is_dir():
            spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(file)]
            return spec
        folders = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            fullname, file, submodule_search_locations=folders
        )

    def refresh(self, stamps: dict[str, list[int]]) -> None:
        """Fetch those files again that were edited."""
        for name, own in list(self._stamps.items()):
            if stamps.get(name, own) != own:
                self._fetch(name)

    def _fetch(self, name: str) -> Path | None:
        answer = context.require().requests.ask({"to": "module", "name": name})
        if answer.header["status"] != "ok":
            return None
        file: Path = self._folder / answer.header["path"]
        if answer.header["is_folder"]:
            file.mkdir(parents=True, exist_ok=True)
            return file
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(answer.frames[0])
        # Its age counts in whole seconds there.
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)
        self._stamps[name] = answer.header["stamp"]
        return file


_finder: SentModules | None = None


def install() -> None:
    """Let this engine ask its kernel for modules, if its host does not see the notebook's folder.

    What is installed on this host comes first.
    """
    global _finder
    if os.environ.pop(VARIABLE, None):
        folder = Path(os.environ["MGPU_LOG"]).with_name("modules")
        _finder = SentModules(folder)
        sys.meta_path.append(_finder)
        reload.watch(folder)


def refresh(stamps: dict[str, list[int]]) -> None:
    """Fetch those files again that were edited in the notebook's folder."""
    if _finder is not None:
        _finder.refresh(stamps)
