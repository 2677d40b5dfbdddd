"""`jupyter mgpu cluster check`: each step is tried, and what fails is named with what to do."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_stubs import gpus
from slurm import slurm  # noqa: F401 - a fixture
from sshd import ssh_folder  # noqa: F401 - a fixture

from jupyter_mgpu.clusters.files import PROJECT_FILE
from jupyter_mgpu.clusters.versions import compare, differing_torch
from notebooks import wait_until

Found = dict[str, list[str]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Found]]:
    """Write a project file and check a cluster of it: the exit code, and the checks by name."""
    monkeypatch.chdir(tmp_path)

    def run(text: str, name: str = "lab", **variables: str) -> tuple[int, Found]:
        (tmp_path / PROJECT_FILE).write_text(text)
        command = [sys.executable, "-m", "jupyter_mgpu.cli", "cluster", "check", name, "--json"]
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        found: Found = {}
        for each in json.loads(done.stdout):
            words = f"{each['outcome']}: {each['finding']} {each['next_step'] or ''}"
            found.setdefault(each["name"], []).append(words)
        return done.returncode, found

    return run


def lab(folder: Path, hosts: str, more: str = "", config: str = "config") -> str:
    """Describe a cluster on the sshd of the tests."""
    return f'[lab]\nconfig = "{folder / config}"\nhosts = [{hosts}]\n{more}\n'


def far(**settings: str) -> str:
    """Describe the host of that sshd; its Python is this one, unless another is given."""
    values = {"name": "far", "python": sys.executable, **settings}
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items()) + " }"


@pytest.mark.ssh
def test_a_host_that_is_fit_passes_every_step(
    check: Callable[..., tuple[int, Found]],
    ssh_folder: Path,  # noqa: F811 - the fixture
) -> None:
    code, found = check(lab(ssh_folder, f'"local", {far()}'))

    outcomes = {name: words[0].partition(":")[0] for name, words in found.items()}
    assert code == 0, found
    assert "the hosts local, far" in found["description"][0]
    for step in ("reach", "versions", "ports", "folder", "clock"):
        assert outcomes[f"far: {step}"] == "passed"
    assert [" reaches " in words for words in found["far: ports"]] == [True, True]
    assert "there as well" in found["far: folder"][0]  # the same disk
    assert "local: ports" not in found


@pytest.mark.ssh
def test_gpus_of_a_host_are_those_found_there(
    check: Callable[..., tuple[int, Found]],
    ssh_folder: Path,  # noqa: F811 - the fixture
    gpu_machine: Callable[[str], Any],
    tmp_path: Path,
) -> None:
    machine = gpu_machine(gpus(2))
    changed = {key: value for key, value in machine.items() if os.environ.get(key) != value}
    python = tmp_path / "python"
    settings = " ".join(f"'{key}={value}'" for key, value in changed.items())
    python.write_text(f'#!/bin/sh\nexec env {settings} {sys.executable} "$@"\n')
    python.chmod(0o755)

    _, all_there = check(lab(ssh_folder, far(python=str(python))))
    code, too_many = check(lab(ssh_folder, far(python=str(python), gpus="0-3")))
    _, none = check(lab(ssh_folder, far(gpus="none")))

    assert all_there["far: GPUs"] == ["passed: 0 NVIDIA H200, 1 NVIDIA H200. "]
    assert code == 1
    assert "2, 3 of gpus = '0-3' are not there, but: 0 NVIDIA" in too_many["far: GPUs"][0]
    assert f"Correct gpus for far in {tmp_path / PROJECT_FILE}" in too_many["far: GPUs"][0]
    assert none["far: GPUs"] == ["skipped: CPU engines are asked for. "]


@pytest.mark.ssh
@pytest.mark.parametrize(
    ("state", "outcome"), [("4: ACTIVE", "passed: mlx5_0 port 1"), ("1: DOWN", "failed: No port")]
)
def test_adapters_of_a_host_are_told(
    check: Callable[..., tuple[int, Found]],
    ssh_folder: Path,  # noqa: F811 - the fixture
    tmp_path: Path,
    state: str,
    outcome: str,
) -> None:
    port = "/sys/class/infiniband/mlx5_0/ports/1"
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ -n "$INSIDE" ] || INSIDE=1 exec unshare --mount "$0" "$@"\n'
        f"mount -t tmpfs none /sys/class\nmkdir -p {port}\necho '{state}' > {port}/state\n"
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)

    _, found = check(lab(ssh_folder, far(python=str(python), gpus="none")))

    assert found["far: InfiniBand"][0].startswith(outcome)
    assert state in found["far: InfiniBand"][0]


@pytest.mark.ssh
@pytest.mark.parametrize(
    ("settings", "step", "words"),
    [
        ({"python": "/no/python"}, "python", r"/no/python does not run on far"),
        ({"folder": "/no/folder"}, "folder", "/no/folder is not there"),
        ({"address": "nowhere.invalid"}, "ports", "this host does not reach far (port"),
        ({"ssh": "no-such-host.invalid"}, "reach", "Correct the name, or give it a HostName"),
    ],
)
def test_the_step_that_fails_is_named(
    check: Callable[..., tuple[int, Found]],
    ssh_folder: Path,  # noqa: F811 - the fixture
    settings: dict[str, str],
    step: str,
    words: str,
) -> None:
    code, found = check(lab(ssh_folder, far(**settings)))

    assert code == 1
    assert [name for name, each in found.items() if "failed" in " ".join(each)] == [f"far: {step}"]
    assert words in " ".join(found[f"far: {step}"])


@pytest.mark.ssh
def test_what_ssh_refuses_is_told_with_the_way_out(
    check: Callable[..., tuple[int, Found]],
    ssh_folder: Path,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    _, strange = check(
        lab(ssh_folder, far(), f'options = ["-o", "UserKnownHostsFile={tmp_path}/none"]', "strange")
    )
    other_key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other_key], check=True)
    config = (ssh_folder / "config").read_text().replace(f"{ssh_folder}/key", str(other_key))
    (ssh_folder / "wrong_key").write_text(config)
    _, denied = check(lab(ssh_folder, far(), config="wrong_key"))
    _, closed = check(lab(ssh_folder, far(), "port = 1"))

    assert "Run `ssh far` once in a terminal" in strange["far: reach"][0]
    assert "ssh-copy-id far" in denied["far: reach"][0]
    assert "Start sshd there, or set port" in closed["far: reach"][0]


@pytest.mark.ssh
def test_a_tunnel_needs_no_open_port(
    check: Callable[..., tuple[int, Found]],
    ssh_folder: Path,  # noqa: F811 - the fixture
) -> None:
    code, found = check(lab(ssh_folder, far(address="nowhere.invalid"), "tunnel = true"))

    assert code == 0
    assert found["far: ports"] == ["skipped: tunnel = true: everything goes through ssh. "]


@pytest.mark.ssh
def test_two_hosts_are_checked_against_each_other(
    check: Callable[..., tuple[int, Found]],
    ssh_folder: Path,  # noqa: F811 - the fixture
) -> None:
    code, found = check(
        lab(ssh_folder, f"{far()}, {far(name='other', ssh='far', address='nowhere.invalid')}")
    )

    ports = " ".join(found["far: ports"])
    assert code == 1
    assert "far does not reach other" in ports
    assert 'address = "ADDRESS" for other' in ports
    assert "other reaches far at" in " ".join(found["other: ports"])


@pytest.mark.slurm
def test_a_job_of_slurm_is_tried_and_the_node_looked_at(
    check: Callable[..., tuple[int, Found]],
    slurm: dict[str, str],  # noqa: F811 - the fixture
    gpu_machine: Callable[[str], Any],
) -> None:
    machine = {**gpu_machine(gpus(4)), "SLURM_CONF": slurm["SLURM_CONF"]}
    text = '[lab]\nkind = "slurm"\npartition = "{}"\noptions = ["{}"]\n'

    code, found = check(text.format("gpu", "--mem=100"), **machine)
    _, no_partition = check(text.format("cpu", "--mem=100"), **machine)
    _, too_much = check(text.format("gpu", "--mem=100G"), **machine)
    _, no_folder = check(text.format("gpu", "--mem=100") + 'folder = "/no/folder"\n', **machine)

    assert code == 0, found
    assert "gpu*: 1 nodes idle" in found["Slurm"][0]
    assert "Slurm would take a job of one engine" in found["job"][0]
    assert found["a node: GPUs"][0].endswith("3 NVIDIA H200; CUDA_VISIBLE_DEVICES=0. ")
    assert "a node reaches this host" in found["a node: ports"][0]
    assert "There is no partition 'cpu', but: gpu, urgent." in no_partition["Slurm"][0]
    assert "Requested node configuration is not available" in too_much["job"][0]
    assert "/no/folder is not there" in no_folder["a node: folder"][0]


@pytest.mark.slurm
def test_a_full_cluster_is_no_failure(
    check: Callable[..., tuple[int, Found]],
    slurm: dict[str, str],  # noqa: F811 - the fixture
) -> None:
    with subprocess.Popen(["srun", "--exclusive", "sleep", "600"], env=slurm) as holder:
        try:
            wait_until(lambda: " R" in _queue(slurm), 60, "the other job")
            code, found = check('[lab]\nkind = "slurm"\n', SLURM_CONF=slurm["SLURM_CONF"])
        finally:
            holder.terminate()

    assert code == 0, found
    assert found["a node: reach"][0].startswith("skipped: No node is free at once")


def _queue(environment: dict[str, str]) -> str:
    command = ["squeue", "--noheader", "--format=%i %t"]
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


def test_this_machine_passes(check: Callable[..., tuple[int, Found]]) -> None:
    code, found = check("", "local")

    assert code == 0
    assert "and the packages fit" in found["this host: versions"][0]


def test_a_missing_program_is_named(check: Callable[..., tuple[int, Found]]) -> None:
    code, found = check('[lab]\nkind = "mpi"\ncommand = "no-mpirun"\n')

    assert code == 1
    assert "There is no program 'no-mpirun' here." in found["MPI"][0]
    assert list(found) == ["description", "MPI"]


def test_a_launcher_that_chooses_hosts_itself_is_not_probed(
    check: Callable[..., tuple[int, Found]],
) -> None:
    code, found = check('[lab]\nkind = "pbs"\n')

    assert code == 0
    assert found["hosts"][0].startswith("skipped: The launcher pbs chooses where engines run.")


def facts(python: str = "3.11.7", **packages: str | None) -> dict[str, Any]:
    """What the probe tells of a host."""
    equal = dict.fromkeys(("ipyparallel", "ipykernel", "pyzmq", "cloudpickle"), "9.2.0")
    return {
        "python": python,
        "executable": "/sw/python",
        "packages": {"jupyter_mgpu": "0.1.0", "torch": "2.13.0+cpu", **equal, **packages},
    }


@pytest.mark.parametrize(
    ("there", "refused", "told"),
    [
        (facts(), None, None),
        (facts("3.11.2"), None, None),
        (facts("3.10.4"), "Python is 3.11.7 here and 3.10.4 on far (/sw/python)", None),
        (facts(jupyter_mgpu="0.2.0"), "jupyter_mgpu is 0.1.0 here and 0.2.0 on far.", None),
        (facts(pyzmq=None), "pyzmq is 9.2.0 here and missing on far.", None),
        (facts(pyzmq="27.0"), None, "pyzmq is 9.2.0 here and 27.0 on far."),
        (facts(torch=None), None, "torch is 2.13.0+cpu here and missing on far."),
        (facts(torch="2.9.1+cu126"), None, "torch is 2.13.0+cpu here and 2.9.1+cu126 on far."),
    ],
)
def test_versions_that_differ_are_refused_or_told(
    there: dict[str, Any], refused: str | None, told: str | None
) -> None:
    found = compare(facts(), there, "far")

    for sentences, words in zip(found, (refused, told), strict=True):
        assert len(sentences) == (words is not None)
        assert words is None or sentences[0].startswith(words)


def test_hosts_of_one_pool_need_one_release_of_torch() -> None:
    builds = {"a": facts(torch="2.13.0+cpu"), "b": facts(torch="2.13.1+cu126")}

    assert differing_torch(builds) is None
    assert differing_torch({**builds, "c": facts(torch="2.9.1"), "d": facts(torch=None)}) == (
        "torch is 2.13.0+cpu on a, 2.13.1+cu126 on b, 2.9.1 on c."
    )
