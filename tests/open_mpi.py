"""Open MPI as tests use it: as root, on a machine with fewer cores than ranks."""

import shutil

import pytest


def allow_open_mpi(patch: pytest.MonkeyPatch) -> None:
    """Let root use mpirun; skip the test where there is none."""
    if shutil.which("mpirun") is None:
        pytest.skip("needs Open MPI (apt-get install openmpi-bin)")
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        patch.setenv(name, "1")
