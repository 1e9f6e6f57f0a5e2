"""Weights alone, in one file that names the run's settings: the best ones of a run, and snapshots along the way.

    checkpoints/best/weights.safetensors     the weights with the best evaluation so far
    snapshots/00005000.safetensors           the weights after this many episodes

A file is written under a temporary name, synced and renamed; its header has the facts about it and a checksum.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from shoal.errors import UserError
from shoal.runs import disk
from shoal.runs.checkpoint import Arrays, Checkpoint, newest
from shoal.system.files import replace_file
from shoal.training.config import read_config
from shoal.training.run_folder import CHECKPOINTS

BEST, SNAPSHOTS = f"{CHECKPOINTS}/best/weights.safetensors", "snapshots"
_FACTS = "shoal"  # key in the file's header


def write_weights(path: Path, weights: Arrays, facts: dict[str, Any]) -> None:
    """Write weights and JSON facts about them, `episode` among them; the previous file stays until all is on disk."""
    weights = {name: np.asarray(array, order="C") for name, array in weights.items()}
    held = disk.sealed({**facts, "weights": disk.sha256(safetensors.numpy.save(weights))})
    data = safetensors.numpy.save(weights, {_FACTS: json.dumps(held)})
    with disk.sentence(f"'{path}' cannot be written"):
        for folder in (path.parent.parent, path.parent):
            disk.make_folder(folder)
        replace_file(path, data, path.with_name(f".{path.name}.new"))
        disk.sync(path.parent)


def read_weights(path: Path) -> Checkpoint:
    """What `write_weights` wrote, as a checkpoint with the part `weights` only; raises `disk.Damaged`."""
    data = disk.read(path)
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        facts = disk.unsealed(json.loads(header["__metadata__"][_FACTS]))
        weights = safetensors.numpy.load(data)
    except (ValueError, RecursionError, LookupError, TypeError, safetensors.SafetensorError):
        raise disk.Damaged(f"{path.name} is not as it was written") from None
    if facts["weights"] != disk.sha256(safetensors.numpy.save(weights)):
        raise disk.Damaged(f"{path.name} has a wrong checksum")
    return Checkpoint(path, facts["episode"], {"weights": weights}, facts, ())


def snapshot_path(folder: Path, episode: int) -> Path:
    """The file of a run's snapshot."""
    return folder / SNAPSHOTS / f"{episode:08d}.safetensors"


def check_run(folder: Path, checkpoint: str) -> None:
    """Refuse a folder that is no run, or has no such weights, before torch is imported to load them."""
    read_config(folder)
    if checkpoint != "last":
        _chosen_path(folder, checkpoint)


def chosen_weights(folder: Path, name: str) -> Checkpoint:
    """The weights of a run that --checkpoint names: `best`, or the episode of a snapshot."""
    path = _chosen_path(folder, name)
    with disk.sentence(f"'{path}' is damaged, leave out --checkpoint to use the newest weights"):
        return read_weights(path)


def updates_made(folder: Path, name: str) -> int:
    """Updates of the weights of a run that --checkpoint names; none: they are untrained."""
    found = newest(folder / CHECKPOINTS) if name == "last" else chosen_weights(folder, name)
    return int(found.meta["updates"]) if found is not None else 0


def _chosen_path(folder: Path, name: str) -> Path:
    path = folder / BEST if name == "best" else snapshot_path(folder, _episode(name))
    if not path.exists():
        raise UserError(_missing(folder, name))
    return path


def _episode(name: str) -> int:
    if not (name.isascii() and name.isdecimal() and len(name) < 16):  # a longer one is no file name
        raise UserError(f"--checkpoint is '{name}', but must be last, best or the episode of a snapshot.")
    return int(name)


def _missing(folder: Path, name: str) -> str:
    if name == "best":
        return f"'{folder}' has no best weights: its run had no evaluation yet, see shoal train --evaluate-every."
    files = (re.fullmatch(r"([0-9]{8,})\.safetensors", file) for file in disk.names(folder / SNAPSHOTS))
    episodes = [f"{int(match[1])}" for match in files if match]
    held = f"it has those of {', '.join(episodes)}" if episodes else "see shoal train --snapshots"
    return f"'{folder}' has no snapshot of episode {int(name)}: {held}."
