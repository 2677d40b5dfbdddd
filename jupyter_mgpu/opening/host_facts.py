"""Compares hosts that are new in a pool, as its engines tell of them, with this one."""

import contextlib
import secrets
from pathlib import Path
from typing import Any

from jupyter_mgpu.clusters import ClusterDescription
from jupyter_mgpu.clusters.versions import compare, differing_torch, facts
from jupyter_mgpu.errors import MgpuError, PoolStartError
from jupyter_mgpu.output import notices
from jupyter_mgpu.pool import Pool
from jupyter_mgpu.transport.folder_mark import marked

ANSWER_S = 20.0
HERE = "this host"
UNSEEN = (
    "{host} does not see the notebook's folder: modules beside the notebook are sent there, "
    "other files are not."
)


def check_hosts(pool: Pool, cluster: ClusterDescription, first_rank: int = 0) -> None:
    """Refuse hosts that cannot do what the pool is for, and tell what differs there.

    Args:
        pool: A pool that has started, or has grown.
        cluster: Where its engines are.
        first_rank: The first of its engines that are new.

    Raises:
        PoolStartError: If Python, this package or a working folder does not fit.
    """
    engines = pool.engines
    known = {engine.host for engine in engines if engine.rank < first_rank}
    if known >= {engine.host for engine in engines}:
        return
    rank_on = {engine.host: engine.rank for engine in engines if engine.host is not None}
    found: dict[str, dict[str, Any]] = {}
    nonce = secrets.token_hex(16)
    with marked(Path.cwd(), nonce) as file:
        asked = {host: pool.owner.rpc(r, "facts", file=str(file)) for host, r in rank_on.items()}
        for host, answer in asked.items():
            with contextlib.suppress(MgpuError, TimeoutError):  # it has died meanwhile
                found[host] = answer.result(ANSWER_S)
    refused: list[str] = []
    told: list[str] = []
    for name, there in sorted(found.items()):
        if name in known:
            continue
        refused += _refuse_folder(cluster, name, there)
        if cluster.kind != "ssh":  # there they were compared before
            wrong, differs = compare(facts(), there, name)
            refused += wrong
            told += differs
            told += [] if there["word"] == nonce else [UNSEEN.format(host=name)]
    if refused:
        raise PoolStartError(f"{' '.join(refused)} Correct that there, or in {cluster.place}.")
    here = {HERE: facts()} if any(engine.host is None for engine in engines) else {}
    if (torch := differing_torch({**here, **found})) is not None:
        told.append(f"{torch} Collectives between them may fail or hang.")
    for sentence in told:
        notices.say(sentence)


def _refuse_folder(cluster: ClusterDescription, name: str, there: dict[str, Any]) -> list[str]:
    described = next((host for host in cluster.hosts if host.name == name), None)
    folder = (described and described.folder) or cluster.folder
    if folder is None or there["has_folder"] or (described and described.is_local):
        return []
    return [f"The working folder {folder} is not there on {name}."]
