"""The kernel's warning filters on the engines."""

import importlib
import sys
import warnings
from pathlib import Path

import pytest

from jupyter_mgpu.start import parpool

LIBRARY = """
import warnings
class Grumble(UserWarning): pass
warnings.filterwarnings("ignore", category=Grumble)
"""


def test_a_librarys_filters_come_with_its_import_and_do_not_cause_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "grumbler.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)

    def is_imported() -> bool:
        return "grumbler" in sys.modules

    def grumble() -> str:
        import grumbler

        try:
            warnings.warn(grumbler.Grumble("too early"), stacklevel=1)
        except grumbler.Grumble as error:
            return f"raised: {error}"
        return "ignored"

    def obsolete() -> None:
        warnings.warn("old", FutureWarning, stacklevel=1)

    with warnings.catch_warnings():
        category = importlib.import_module("grumbler").Grumble
        warnings.filterwarnings("error", category=category)
        warnings.filterwarnings("error", category=FutureWarning)
        with parpool(1, name="strict") as pool:
            assert not pool.submit(is_imported).result(60)
            assert pool.submit(grumble).result(60) == "raised: too early"
            with pytest.raises(FutureWarning, match="old"):
                pool.submit(obsolete).result(60)
