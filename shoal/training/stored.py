"""Reopening a run folder: its files are first compared with its checkpoint, which has checksums."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.runs import disk
from shoal.runs.checkpoint import Checkpoint
from shoal.training.config import CONFIG, StoredConfig, TrainConfig, read_fields
from shoal.training.result import TrainResult, read_result
from shoal.training.run_folder import CHECKPOINTS, RESULT, LogMark


def check_settings(config: StoredConfig, folder: Path, checkpoint: Checkpoint | None) -> None:
    """Refuse a config.json that differs from the settings that the run was trained with.

    Before the first checkpoint only its own checksum can be checked; later a file repaired by hand is accepted.
    """
    path = folder / CONFIG
    if checkpoint is None:
        try:
            disk.unsealed(read_fields(folder))
        except ValueError as error:
            raise UserError(f"'{path}' is damaged: {error}; restore a copy, or train into another folder.") from None
        return
    trained = config.stored(checkpoint.meta["settings"]).settings
    found = config.settings
    changed = [name for name in found if found[name] != trained[name]]
    if changed and not (config.changeable.issuperset(changed) and _sealed(folder)):  # a resume may have changed them
        values = ", ".join(f"{name} is {_json(found[name])} instead of {_json(trained[name])}" for name in changed)
        held = checkpoint.path / "meta.json" if checkpoint.path.is_dir() else checkpoint.path
        raise UserError(f"'{path}' is damaged: {values}; restore what '{held}' says the run was trained with.")


def _sealed(folder: Path) -> bool:
    """Whether config.json is as Shoal wrote it."""
    try:
        disk.unsealed(read_fields(folder))
    except ValueError:
        return False
    return True


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def finished_result(folder: Path, checkpoint: Checkpoint | None) -> TrainResult | None:
    """The result of a finished run; None if there is none yet. A `UserError` if it does not match the checkpoint."""
    result = read_result(folder)
    if result is None:
        return None
    if checkpoint is None:
        raise no_checkpoint(folder)
    counted = {"episodes": result.episodes, "samples": result.env_steps, "updates": result.updates}
    for name, count in counted.items():
        if checkpoint.meta[name] != count:
            raise UserError(
                f"'{folder / RESULT}' does not match checkpoint '{checkpoint.path}': it has {count:,} {name}, the "
                f"checkpoint {checkpoint.meta[name]:,}; remove it, and --resume will recreate it."
            )
    return result


def no_checkpoint(folder: Path) -> UserError:
    """The error for a run that has no checkpoint."""
    if (folder / RESULT).exists():
        return UserError(
            f"The run in '{folder}' is finished, but its checkpoints are gone: restore '{folder / CHECKPOINTS}' "
            f"or remove {RESULT} and train it again with --resume."
        )
    return UserError(f"'{folder}' has no checkpoint yet: train it first, or resume it.")


def damage(config: TrainConfig, folder: Path, checkpoint: Checkpoint) -> Iterator[str]:
    """Messages about damaged files of a run that its team can be played without."""
    try:
        finished = read_result(folder) is not None
    except UserError as error:
        yield str(error)
    else:
        over = checkpoint.meta["episodes"] >= config.episodes  # which may have been extended since the checkpoint
        if over and not finished:
            yield f"'{folder}' is fully trained, but has no {RESULT}: unless it still runs, --resume will create it."
    if sentence := LogMark(*checkpoint.meta["log"]).damage(folder):
        yield sentence
