"""What a machine and its container allow, read from cgroups of both versions."""

import os
import re

import psutil
import pytest

from jupyter_mgpu import host


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """Pretended cgroup files: `cgroups("0::/box", {"box/cpu.max": "150000 100000"})`."""

    def make(own: str, files: dict[str, str]) -> None:
        (tmp_path / "own").write_text(own + "\n")
        for name, text in files.items():
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        monkeypatch.setattr(host, "_OWN_CGROUPS", tmp_path / "own")
        monkeypatch.setattr(host, "_CGROUP_ROOT", tmp_path / "root")

    return make


def test_no_limits_are_none(cgroups):
    cgroups("0::/", {"cpu.max": "max 100000", "memory.max": "max", "pids.max": "max"})

    assert host.cpu_quota() is None
    assert host.memory_limit_bytes() is None
    assert host.pids_limit() is None


def test_limits_of_version_2_are_read_and_the_tightest_level_counts(cgroups):
    cgroups(
        "0::/outer/inner",
        {
            "outer/cpu.max": "150000 100000",
            "outer/inner/cpu.max": "400000 100000",
            "outer/inner/memory.max": str(4 * 2**30),
            "outer/inner/memory.current": str(3 * 2**30),
            "outer/inner/memory.stat": f"anon 1\ninactive_file {2**30}",
            "outer/memory.max": "max",
            "outer/inner/pids.max": "512",
        },
    )

    assert host.cpu_quota() == 1.5
    assert host.memory_limit_bytes() == 4 * 2**30
    assert host.available_memory_bytes() == 2 * 2**30
    assert host.memory_bytes() == (2 * 2**30, 4 * 2**30)
    assert host.pids_limit() == 512


def test_limits_of_version_1_are_read(cgroups):
    cgroups(
        "4:memory:/box\n3:cpu,cpuacct:/box\n2:pids:/box",
        {
            "cpu/box/cpu.cfs_quota_us": "50000",
            "cpu/box/cpu.cfs_period_us": "100000",
            "memory/box/memory.limit_in_bytes": str(2**30),
            "memory/box/memory.usage_in_bytes": str(2**29),
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "pids/box/pids.max": "100",
        },
    )

    assert host.cpu_quota() == 0.5
    assert host.memory_limit_bytes() == 2**30
    assert host.available_memory_bytes() == 2**29
    assert host.memory_bytes() == (2**29, 2**30)
    assert host.pids_limit() == 100


def test_memory_without_a_limit_is_that_of_the_machine(cgroups):
    cgroups("0::/", {"memory.max": "max"})

    used, total = host.memory_bytes()

    assert total == psutil.virtual_memory().total
    assert 0 < used < total


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("0::/box", {"box/cpu.max": "50000 100000", "box/cpu.stat": "usage_usec 2500000\nuser 1"}),
        (
            "3:cpu,cpuacct:/box",
            {
                "cpu/box/cpu.cfs_quota_us": "50000",
                "cpu/box/cpu.cfs_period_us": "100000",
                "cpu/box/cpuacct.usage": "2500000000",
            },
        ),
        ("0::/", {"cpu.max": "max 100000"}),
    ],
)
def test_the_time_that_a_container_used_is_counted_where_it_has_a_quota(cgroups, own, files):
    cgroups(own, files)

    assert host.cpu_time_s() == (None if own == "0::/" else (2.5, 0.5))


def test_a_container_that_sees_only_its_own_root_is_read_there(cgroups):
    cgroups("0::/kubepods/pod1", {"cpu.max": "200000 100000"})

    assert host.cpu_quota() == 2


@pytest.mark.parametrize(
    ("files", "number", "words"),
    [
        ({"cpu.max": "50000 100000"}, 1, "1 CPU engine (1 core of the container's quota)"),
        (
            {"memory.max": str(2**30 + 2**29), "memory.current": "0"},
            1,
            "for 1.5 GiB of free memory",
        ),
    ],
)
def test_the_tightest_limit_decides_how_many_cpu_engines_start(cgroups, files, number, words):
    cgroups("0::/", files)

    count = host.default_cpu_count()

    assert count.num_engines == number
    assert words in count.reason


def test_there_are_never_more_cpu_engines_than_cores_that_may_be_used(cgroups):
    cgroups("0::/", {})

    count = host.default_cpu_count()

    assert 1 <= count.num_engines <= min(8, len(os.sched_getaffinity(0)))
    assert re.match(r"\d+ CPU engines? \(", count.reason)
