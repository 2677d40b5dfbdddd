"""Checkpoints: all that a training needs to go on as if it had never stopped.

Rank 0 writes them, each whole or not at all; the newest few are kept.
"""

import contextlib
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

_NAME = re.compile(r"checkpoint-(\d+)\.pt")


def save(folder: str | Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint and remove the oldest ones beyond `keep`.

    Raises:
        OSError: If it cannot be written; the ones that are there stay.
    """
    import torch

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint-{step:09d}.pt"
    draft = path.with_suffix(f".{os.getpid()}.draft")
    for old in folder.glob(f"{path.stem}.*.draft"):  # whose writer was killed
        old.unlink(missing_ok=True)
    try:
        with draft.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    for old in found(folder)[:-keep]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def found(folder: str | Path) -> list[Path]:
    """Return the checkpoints of a folder, oldest first: by time, as trainings may share it."""
    with contextlib.suppress(OSError):
        paths = [path for path in Path(folder).iterdir() if _NAME.fullmatch(path.name)]
        return sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name))
    return []


def load(place: str | Path, device: str, *, is_mapped: bool = False) -> dict[str, Any]:
    """Read a checkpoint, or the newest of a folder.

    Args:
        place: The file, or the folder.
        device: Where its tensors go.
        is_mapped: Read what is used of it, when it is used, as several ranks may take parts of it.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is no checkpoint of ours.
    """
    import torch

    path = Path(place)
    if path.is_dir():
        path = (found(path) or [path / "checkpoint"])[-1]
    if not path.is_file():
        raise FileNotFoundError(f"The checkpoint {path} was asked for, but there is no such file.")
    try:
        # Not weights only: it holds the states of random generators. It is the user's own file.
        state = torch.load(path, map_location=device, mmap=is_mapped, weights_only=False)
        _ = state["net"], state["optimizer"], state["step"]
    except Exception as error:
        raise ValueError(f"{path} is no checkpoint of a training: {error}") from error
    return dict(state)


def random_state() -> dict[str, Any]:
    """Return the states of this process's random generators."""
    import torch

    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Put this process's random generators back."""
    import torch

    random.setstate(state["python"])
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].cpu())
    if "numpy" in state:
        import numpy as np

        np.random.set_state(state["numpy"])
