"""`jupyter mgpu cluster`: which clusters are described, and whether one works."""

import argparse
from dataclasses import asdict
from typing import Any

from jupyter_mgpu import clusters
from jupyter_mgpu.cli.shown import Outcome
from jupyter_mgpu.diagnosis.cluster_checks import check_cluster


def add_to(commands: Any) -> None:
    """Add the command to the parser's."""
    words = "Check a cluster of the clusters file: reach, versions, GPUs, ports."
    cluster = commands.add_parser("cluster", help=words, description=words)
    actions = cluster.add_subparsers(title="actions", required=True, metavar="ACTION")
    words = "Try each step of a start, and say which one fails and what to do."
    check = actions.add_parser("check", help=words, description=words)
    check.add_argument("name", help="the cluster's name, as after %%parpool --cluster")
    check.add_argument("--json", action="store_true", help="write JSON")
    check.set_defaults(command=_check)


def _check(given: argparse.Namespace) -> Outcome:
    report = check_cluster(clusters.find(given.name))
    return Outcome(
        [asdict(check) for check in report], repr(report), exit_code=1 if report.failed else 0
    )
