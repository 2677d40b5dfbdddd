"""Large results that wait on disk: whose they are, how much they may take, which go first."""

import os
from pathlib import Path

import pytest

from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.owner import journal, spool
from jupyter_mgpu.owner.spool import Spool


def keep(kept: Spool, task: str, size: int) -> str | None:
    name = kept.keep(task, [b"x" * (size - 1), b"y"])
    kept.close()
    return name


def test_the_oldest_results_go_when_all_take_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "SPOOL_BYTES", 1000)
    for number, pool in enumerate(("a", "b")):  # the limit is that of all pools
        name = keep(Spool(tmp_path, pool), "1", 400)
        assert name == f"{pool}-1.result"
        os.utime(tmp_path / name, ns=(number, number))

    assert keep(Spool(tmp_path, "c"), "1", 300) == "c-1.result"

    assert sorted(path.name for path in tmp_path.iterdir()) == ["b-1.result", "c-1.result"]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert (tmp_path / "c-1.result").read_bytes() == b"x" * 299 + b"y"
    spool.wait_for(tmp_path / "c-1.result")
    with pytest.raises(MgpuError, match=r"not on disk any more.*the oldest go first"):
        spool.wait_for(tmp_path / "a-1.result")


def test_what_is_too_large_or_leaves_no_room_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "SPOOL_BYTES", 1000)
    kept = Spool(tmp_path, "a")
    assert keep(kept, "1", 1000) is not None

    assert keep(kept, "2", 1001) is None
    monkeypatch.setattr(spool, "LEFT_BYTES", 2**63)
    assert keep(kept, "3", 10) is None

    assert not list(tmp_path.glob("a-[23]*"))


def test_records_go_after_their_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "folder", lambda: tmp_path)
    old, new = (tmp_path / f"{name}.tasks" for name in ("old", "new"))
    result = tmp_path / "old-1.result"
    for path in (old, new, result):
        path.touch()
    for path in (old, result):
        os.utime(path, ns=(0, 0))

    journal.prune()

    assert list(tmp_path.iterdir()) == [new]
