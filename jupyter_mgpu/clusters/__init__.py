"""Descriptions of clusters: which hosts or which scheduler give a pool its engines."""

from jupyter_mgpu.clusters.files import find, list_names
from jupyter_mgpu.clusters.records import (
    NATIVE_KINDS,
    ClusterDescription,
    HostDescription,
    LauncherOptions,
    MpiOptions,
    Options,
    SlurmOptions,
    SshOptions,
)

__all__ = [
    "NATIVE_KINDS",
    "ClusterDescription",
    "HostDescription",
    "LauncherOptions",
    "MpiOptions",
    "Options",
    "SlurmOptions",
    "SshOptions",
    "find",
    "list_names",
]
