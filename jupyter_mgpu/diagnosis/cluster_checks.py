"""`jupyter mgpu cluster check`: tries each step of a start, and says which one fails."""

import contextlib
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

from jupyter_mgpu.clusters import ClusterDescription, HostDescription, MpiOptions, SlurmOptions
from jupyter_mgpu.clusters.commands import (
    ask,
    in_allocation,
    probe_command,
    python_of,
    slurm_words,
)
from jupyter_mgpu.clusters.probe import BOOTSTRAP
from jupyter_mgpu.clusters.probing import Probe, ProbeError
from jupyter_mgpu.clusters.versions import PACKAGES, differing_torch
from jupyter_mgpu.diagnosis.host_visits import (
    Visit,
    check_between,
    checks_of_visit,
    clock_difference_s,
    utc_s,
)
from jupyter_mgpu.diagnosis.report import Check, Report, failed, passed, skipped

LOOK_TIMEOUT_S = 45.0
COMMAND_TIMEOUT_S = 30.0
HERE = "this host"

_SSH_FAILED = 255
_NOT_FOUND = (126, 127)


def check_cluster(cluster: ClusterDescription) -> Report:
    """Try each step of a start on a cluster, without starting a pool.

    Returns:
        The checks: description, reach, versions, GPUs, ports both ways, folder, clock. A step that
        cannot be tried because an earlier one failed is left out.
    """
    checks = [_check_description(cluster), *_check_scheduler(cluster)]
    if any(check.outcome == "failed" for check in checks):
        return Report(tuple(checks))
    if cluster.kind not in ("local", "ssh", "slurm", "mpi"):
        words = f"The launcher {cluster.kind} chooses where engines run."
        return Report((*checks, skipped("hosts", words, "`%parpool 1` on it tries the rest.")))
    hosts: list[HostDescription | None] = list(cluster.hosts) or [None]
    with ExitStack() as stack, _marker() as (file, content), ThreadPoolExecutor(len(hosts)) as pool:

        def visit(host: HostDescription | None) -> Visit | Check:
            return _visit(stack, cluster, host, file, content)

        here = _look(stack, HERE, None, [sys.executable, "-c", BOOTSTRAP], None, "", None)
        visits = list(pool.map(visit, hosts))
        arrived = [visit for visit in visits if isinstance(visit, Visit)]
        for found in visits:
            if isinstance(found, Check):
                checks.append(found)
            else:
                where = f"{found.facts['host']}, Python at {found.facts['executable']}"
                checks.append(passed(f"{found.name}: reach", f"It answers: {where}."))
                checks += checks_of_visit(cluster, here, found)
        checks += _checks_between(cluster, arrived)
    return Report(tuple(checks))


def _check_description(cluster: ClusterDescription) -> Check:
    hosts = f" with the hosts {', '.join(host.name for host in cluster.hosts)}"
    words = f"{cluster.name!r} is of kind {cluster.kind}{hosts if cluster.hosts else ''}"
    return passed("description", f"{words}; {cluster.source}.")


def _check_scheduler(cluster: ClusterDescription) -> list[Check]:
    if isinstance(cluster.options, SlurmOptions):
        return _check_slurm(cluster, cluster.options)
    if isinstance(cluster.options, MpiOptions):
        return [_check_program(cluster.options.command, "MPI", 'command = "/path/to/mpirun"')]
    return []


def _check_program(program: str, what: str, setting: str) -> Check:
    found = shutil.which(program)
    if found is None:
        return failed(
            what,
            f"There is no program {program!r} here.",
            f"Install {what}, load its module before Jupyter starts, or set {setting}.",
        )
    return passed(what, f"{program} is {found}.")


def _check_slurm(cluster: ClusterDescription, options: SlurmOptions) -> list[Check]:
    check = _check_program("sbatch", "Slurm", "PATH, or start Jupyter where sbatch works")
    if check.outcome == "failed":
        return [check]
    partition = ["--partition", options.partition] if options.partition else []
    code, said = _run(["sinfo", "--noheader", "--format=%P: %D nodes %t", *partition])
    if code:
        step = "Ask `sinfo` in a terminal; the administrators know more."
        return [failed("Slurm", f"sinfo ends with {code}: {said}", step)]
    if not said:
        there = ", ".join(sorted(set(_run(["sinfo", "--noheader", "--format=%R"])[1].split())))
        words = f"There is no partition {options.partition!r}, but: {there}."
        return [failed("Slurm", words, f"Correct partition in {cluster.place}.")]
    check = passed("Slurm", f"{'; '.join(said.splitlines())}.")
    if in_allocation():
        return [check, passed("job", "The kernel is in an allocation, whose steps engines become.")]
    gpus = [] if cluster.gpus == "none" else ["--gpus-per-task=1"]
    ask = ["sbatch", "--test-only", "--ntasks=1", *gpus, *slurm_words(options), "--wrap=true"]
    code, said = _run(ask)
    if code:
        return [
            check,
            failed(
                "job",
                f"Slurm would not take a job of one engine: {said}",
                f'Correct what it names in {cluster.place}; gpus = "none" asks for no GPU.',
            ),
        ]
    return [check, passed("job", f"Slurm would take a job of one engine: {said}")]


def _run(command: list[str]) -> tuple[int, str]:
    try:
        done = ask(command, COMMAND_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, (done.stdout + done.stderr).strip()


@contextlib.contextmanager
def _marker() -> Iterator[tuple[str | None, str]]:
    """Put a file into the working folder for a moment, by which to see who shares that folder."""
    content = secrets.token_hex()
    try:
        file = tempfile.NamedTemporaryFile("w", dir=Path.cwd(), prefix=".mgpu-check-")  # noqa: SIM115
    except OSError:
        yield None, content
        return
    with file:
        file.write(content)
        file.flush()
        yield file.name, content


def _visit(
    stack: ExitStack,
    cluster: ClusterDescription,
    host: HostDescription | None,
    file: str | None,
    content: str,
) -> Visit | Check:
    name = host.name if host is not None else {"local": HERE}.get(cluster.kind, "a node")
    command = probe_command(cluster, host, BOOTSTRAP)
    folder = host.folder if host is not None else cluster.folder
    try:
        return _look(stack, name, host, command, file, content, folder)
    except ProbeError as error:
        return _explain(cluster, host, name, error)


def _look(
    stack: ExitStack,
    name: str,
    host: HostDescription | None,
    command: list[str],
    file: str | None,
    content: str,
    folder: str | None,
) -> Visit:
    probe = stack.enter_context(Probe(command))
    token, asked = secrets.token_hex(), utc_s()
    facts = probe.ask(
        "look",
        LOOK_TIMEOUT_S,
        packages=PACKAGES,
        token=token,
        file=file,
        content=content,
        folder=folder,
    )
    away_s = clock_difference_s(facts["time"], asked, utc_s())
    return Visit(name, host, probe, facts, away_s, token)


def _explain(
    cluster: ClusterDescription, host: HostDescription | None, name: str, error: ProbeError
) -> Check:
    """Say why a probe did not run, and what to do."""
    said = " ".join(word for word in error.output.split() if word.strip("-"))
    check = f"{name}: reach"
    if host is None:
        if isinstance(cluster.options, SlurmOptions) and "nodes are busy" in said:
            words = "No node is free at once, so the rest was not looked at."
            return skipped(check, words, "Check again later; `%parpool` waits in the queue.")
        code = "" if error.exit_code is None else f" (exit code {error.exit_code})"
        words = f"No program could be run there{code}: {said or error}"
        return failed(check, words, f"Correct what it names in {cluster.place}.")
    if error.exit_code in _NOT_FOUND:
        return failed(
            f"{name}: python",
            f"{python_of(cluster, host)} does not run on {name}: {said}",
            f'Set python = "/path/to/python" for {name} in {cluster.place}.',
        )
    if error.exit_code == _SSH_FAILED:
        return failed(check, f"ssh does not get there: {said}", _ssh_step(said, host))
    if error.exit_code is None:
        return failed(check, f"{error} {said}".strip(), f"Try `ssh {host.ssh} true` in a terminal.")
    return failed(f"{name}: python", f"{error} {said}", f"Run it by hand: `ssh {host.ssh}`.")


def _ssh_step(said: str, host: HostDescription) -> str:
    steps = {
        "Permission denied": f"Let a key in: `ssh-copy-id {host.ssh}`, and start ssh-agent if the "
        "key has a passphrase; ssh cannot ask for a password here.",
        "Host key verification failed": f"Run `ssh {host.ssh}` once in a terminal and accept it.",
        "Could not resolve": "Correct the name, or give it a HostName in ~/.ssh/config.",
        "refused": "Start sshd there, or set port.",
        "timed out": "Is the host on? A VPN or a jump host (ProxyJump in ~/.ssh/config) may be "
        "needed.",
    }
    other = f"Try `ssh {host.ssh} true` in a terminal."
    return next((step for words, step in steps.items() if words in said), other)


def _checks_between(cluster: ClusterDescription, visits: list[Visit]) -> list[Check]:
    """Check what concerns several hosts: their torch, and the ways between them."""
    if len(visits) < 2:
        return []
    checks = []
    torch = differing_torch({visit.name: visit.facts for visit in visits})
    if torch is not None:
        step = "Install the same release on all hosts: collectives between others fail or hang."
        checks.append(failed("torch", torch, step))
    if not getattr(cluster.options, "tunnel", False):
        remote = [visit for visit in visits if visit.host is None or not visit.host.is_local]
        checks += [check_between(one, other) for one, other in permutations(remote, 2)]
    return checks
