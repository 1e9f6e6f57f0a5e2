"""The trained team of a run folder, and its weights: the newest, the best ones, and snapshots along the way.

    checkpoints/00005000/                    the newest weights, with everything else
    checkpoints/best/weights.safetensors     the weights with the best evaluation so far
    snapshots/00005000.safetensors           the weights after this many episodes

The latter two are files that name the run's settings. They are written under a temporary name, synced and renamed; the
header has the facts about the weights and a checksum. Torch is imported only to load a team.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.numpy

from shoal.errors import UserError
from shoal.runs import disk
from shoal.runs.checkpoint import Arrays, Checkpoint, newest
from shoal.runs.folder import CHECKPOINTS, RESULT, read_result
from shoal.runs.lifecycle import no_checkpoint
from shoal.runs.metrics import LogMark
from shoal.runs.settings import check_settings
from shoal.system.files import replace_file
from shoal.training.config import TrainConfig, read_config
from shoal.training.evaluation import build_env
from shoal.training.prechecks import check_code
from shoal.training.result import TrainResult
from shoal.training.world_file import stored_spec

if TYPE_CHECKING:
    from shoal.algorithms.base import BaseTeam
    from shoal.algorithms.team import Team

BEST, SNAPSHOTS = f"{CHECKPOINTS}/best/weights.safetensors", "snapshots"
_FACTS = "shoal"  # key in the file's header


def write_weights(path: Path, weights: Arrays, facts: dict[str, Any]) -> None:
    """Write weights and JSON facts about them, `episode` among them; the previous file stays until all is on disk."""
    weights = {name: np.asarray(array, order="C") for name, array in weights.items()}
    sealed = disk.sealed({**facts, "weights": disk.sha256(safetensors.numpy.save(weights))})
    data = safetensors.numpy.save(weights, {_FACTS: json.dumps(sealed)})
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
    """The weights of a run that `checkpoint` names: `best`, or the episode of a snapshot."""
    path = _chosen_path(folder, name)
    with disk.sentence(f"'{path}' is damaged, leave out `checkpoint` to use the newest weights"):
        return read_weights(path)


def updates_made(folder: Path, name: str) -> int:
    """Updates of the weights of a run that `checkpoint` names; none: they are untrained."""
    checkpoint = newest(folder / CHECKPOINTS) if name == "last" else chosen_weights(folder, name)
    return 0 if checkpoint is None else int(checkpoint.meta["updates"])


def _chosen_path(folder: Path, name: str) -> Path:
    """The file that `checkpoint` names, if it is there."""
    if name == "best":
        if not (folder / BEST).exists():
            raise UserError(
                f"'{folder}' has no best weights: its run had no evaluation yet, see shoal train --evaluate-every."
            )
        return folder / BEST
    if not (name.isascii() and name.isdecimal() and len(name) < 16):  # a longer one is no file name
        raise UserError(f"`checkpoint` is '{name}', but must be last, best or the episode of a snapshot.")
    if not (path := snapshot_path(folder, int(name))).exists():
        files = (re.fullmatch(r"([0-9]{8,})\.safetensors", file) for file in disk.names(folder / SNAPSHOTS))
        episodes = [f"{int(match[1])}" for match in files if match]
        others = f"it has those of {', '.join(episodes)}" if episodes else "see shoal train --snapshots"
        raise UserError(f"'{folder}' has no snapshot of episode {int(name)}: {others}.")
    return path


def load_team(
    folder: Path, warn: Callable[[str], None], trust: bool = False, named: str = "", checkpoint: str = "last"
) -> "tuple[Team, TrainConfig]":
    """Load the trained team of a run folder from its newest intact checkpoint; `warn` is called for damaged files.

    `trust` allows running third-party code that the folder names as its environment; `named` is what the user named.
    The world itself is made only for runs of earlier versions, which did not store its description.
    `checkpoint` may also be `best` or the episode of a snapshot.
    """
    import torch

    from shoal.algorithms import make_team
    from shoal.training.precision import make_precision

    config = read_config(folder)
    if checkpoint == "last":
        saved = newest(folder / CHECKPOINTS, ("weights",), warn)
    else:
        saved = chosen_weights(folder, checkpoint)
    if saved is None:
        raise no_checkpoint(folder)
    check_settings(config, folder, saved)
    spec = stored_spec(config, folder, warn)
    elsewhere = named not in ("", config.env, config.env.removeprefix("gym:"))  # its own world is not made
    used = ("algorithm",) if spec is not None and elsewhere else ("env", "algorithm")  # samplers only in training
    check_code(config, folder, {"env": named}, trust, used)
    for sentence in _damage(config, folder, saved) if checkpoint == "last" else ():
        warn(sentence)
    if spec is None:
        with closing(build_env(config, 1, config.seed, stagger=False)) as env:
            spec = env.spec
    team = make_team(spec, config, config.seed, torch.device("cpu"))
    team.progress(saved.meta["samples"])
    make_precision(team, config)  # its state is stored with the weights
    team.load_weights(saved.parts["weights"])
    return team, config


def acting_team(team: "Team", config: TrainConfig) -> "BaseTeam":
    """The team as it acted in training: in native code, if that is where it learned."""
    from shoal.algorithms.native import NativeTeam
    from shoal.native.runner import why_unusable

    if config.update != "native" or why_unusable() is not None:
        return team
    native = NativeTeam(team.spec, config, config.seed)
    native.load_weights(team.weights())
    return native


def _damage(config: TrainConfig, folder: Path, checkpoint: Checkpoint) -> Iterator[str]:
    """Messages about damaged files of a run that its team can be played without."""
    try:
        finished = read_result(folder, TrainResult) is not None
    except UserError as error:
        yield str(error)
    else:
        over = checkpoint.meta["episodes"] >= config.episodes  # which may have been extended since the checkpoint
        if over and not finished:
            yield f"'{folder}' is fully trained, but has no {RESULT}: unless it still runs, resume it to create one."
    if sentence := LogMark(*checkpoint.meta["log"]).damage(folder):
        yield sentence
