"""Who holds which GPU on this host: one locked record per (GPU, engine), across users.

    pool: claim -> record file, shared lock        reader: exclusive lock without waiting, on a
    engine's watchdog: shared lock as well                 read-only descriptor; refused = alive
    pool: release_own_locks, or drop at its end    no lock left = dead: whoever may removes it

The operating system drops a lock when its last holder ends, however it ends: no lease outlives
its engine, and no clean-up has to run.
"""

from jupyter_mgpu.leases.book import LeaseBook
from jupyter_mgpu.leases.folder import FOLDER_VARIABLE
from jupyter_mgpu.leases.records import Claim, Lease

PATHS_VARIABLE = "MGPU_LEASES"
"""Names the records of an engine to its watchdog, separated by os.pathsep."""

__all__ = ["FOLDER_VARIABLE", "PATHS_VARIABLE", "Claim", "Lease", "LeaseBook"]
