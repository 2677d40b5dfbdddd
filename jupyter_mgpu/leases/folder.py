"""Where leases lie: a folder that all users of this host can write to."""

import os
import stat
import tempfile
from pathlib import Path

from jupyter_mgpu.errors import LeaseError

FOLDER_VARIABLE = "MGPU_LEASE_DIR"
_FOLDER_MODE = 0o1777
_FOLDER_NAME = "jupyter_mgpu"


def default_folder() -> Path:
    """Find the folder that all users of this host share."""
    override = os.environ.get(FOLDER_VARIABLE)
    if override:
        return Path(override)
    # Not tempfile's choice first: TMPDIR often differs between users.
    for parent in (Path("/run/lock"), Path("/tmp"), Path("/var/tmp")):
        if _is_shared(parent):
            return parent / _FOLDER_NAME
    return Path(tempfile.gettempdir()) / _FOLDER_NAME


def _is_shared(folder: Path) -> bool:
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    is_open = bool(mode & stat.S_IWOTH and mode & stat.S_ISVTX)
    return stat.S_ISDIR(mode) and is_open and os.access(folder, os.W_OK | os.X_OK)


def make_folder(folder: Path) -> Path:
    """Make sure that the folder is there and open to all.

    Raises:
        LeaseError: If this user cannot write there.
    """
    try:
        if not folder.exists():
            _create(folder)
        is_usable = stat.S_ISDIR(folder.lstat().st_mode) and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        is_usable = False
    if not is_usable:
        raise LeaseError(
            f"GPU leases cannot be kept in {folder}: it is no folder that this user may write to. "
            f"Ask its owner to run `chmod 1777 {folder}`, or name another one in {FOLDER_VARIABLE}."
        )
    return folder


def _create(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Made under another name, so that nobody meets it before its mode is right.
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    draft.chmod(_FOLDER_MODE)
    try:
        draft.rename(folder)
    except OSError:  # somebody else was faster, and there is a record in it already
        draft.rmdir()
