"""Refusals that need neither torch nor numba, so that a mistake costs a moment and not the seconds of their import."""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.runs import disk
from shoal.system.processors import check_threads
from shoal.training.config import CONFIG, StoredConfig, TrainConfig
from shoal.training.play import check_env
from shoal.training.world_file import needs_trust
from shoal.trust import check_trusted, untrusted

METRICS, RESULT, CHECKPOINTS, CURVE = "metrics.jsonl", "result.json", "checkpoints", "curve.png"
OURS = (CONFIG, RESULT, METRICS, CHECKPOINTS)


def check_new(config: TrainConfig) -> None:
    """Refuse a new run that could not start: its world, its hardware, its folder."""
    if config.threads is not None:
        check_threads(config.threads)
    config.check_evaluated()
    check_workers(config)
    check_env(config)
    check_capacity(config)
    if config.out is not None:
        check_free(config.out)


def run_to_resume(out: str | None) -> Path:
    """The folder of the run to resume, which must be given."""
    if out is None:
        raise UserError("--resume needs a run folder: --out FOLDER --resume, or --resume FOLDER.")
    return Path(out)


def check_kept(asked: Mapping[str, Any], stored: StoredConfig, folder: Path) -> None:
    """Refuse to resume with other settings than the run's, except for those that may change."""
    for name, value in asked.items():
        kept = getattr(stored, name)
        if name == "update" and value == "auto":  # whatever the run has
            continue
        if name not in stored.result_independent | stored.changeable and value != kept:
            given, had = (" ".join(map(str, one)) if isinstance(one, tuple) else one for one in (value, kept))
            raise UserError(
                f"`{name}` is {given}, but the run in '{folder}' has {had}: a resumed run keeps its settings."
            )


def check_world(config: TrainConfig, folder: Path, named: Mapping[str, Any], trust: bool) -> None:
    """Refuse a run whose world is third-party code, unless the user trusts it, names the same, or trained it here."""
    held = {"env": config.env, "env_options": config.env_options}
    env, options = ("" if named.get(name) == value else value for name, value in held.items())
    if not trust and untrusted(env, options) and needs_trust(config, folder):
        check_trusted(f"The run in '{folder}'", env, options, trust)


def check_workers(config: TrainConfig) -> None:
    """Refuse more worker processes than there are copies for."""
    if (config.env_workers or 1) > config.copies:
        raise UserError(
            f"--env-workers is {config.env_workers}, but there "
            f"{'is only 1 copy' if config.copies == 1 else f'are only {config.copies} copies'} to share (--copies)."
        )


def check_capacity(config: TrainConfig) -> None:
    """Refuse a ring without room for every copy; the baseline has only one copy, whatever --copies says."""
    if config.implementation == "engine" and config.capacity < config.copies:
        raise UserError(f"--capacity is {config.capacity}, but must be at least {config.copies}, one for each copy.")


def file_name(text: str) -> str:
    """The text with hyphens in place of what is unusual in names of files."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)


def check_free(out: str | Path) -> None:
    """Refuse a folder in which a new run would overwrite something."""
    if not str(out).strip():
        raise UserError("--out is empty, but must be the name of a folder.")
    folder = Path(out)
    with disk.sentence(f"'{folder}' cannot be written"):  # too long a name, or a parent folder inaccessible
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out '{folder}' is a file, but must be a folder.")
        if any((folder / name).exists() for name in OURS):
            raise UserError(f"'{folder}' already holds a run: continue it with --resume, or choose another --out.")
        check_writable(next(path for path in (folder, *folder.parents) if path.exists()))


def check_writable(folder: Path) -> None:
    """Raise an `OSError` where no file can be made; one without a name is, because permissions do not tell all."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from None
