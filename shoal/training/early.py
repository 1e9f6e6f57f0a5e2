"""Refusals that need neither torch nor numba, so that a mistake costs a moment and not the seconds of their import."""

from pathlib import Path

from shoal.errors import UserError
from shoal.processors import check_threads
from shoal.training import disk
from shoal.training.config import CONFIG, TrainConfig
from shoal.training.play import check_env

METRICS, RESULT, CHECKPOINTS = "metrics.jsonl", "result.json", "checkpoints"
OURS = (CONFIG, RESULT, METRICS, CHECKPOINTS)


def check_new(config: TrainConfig) -> None:
    """Refuse a new run that could not start: its world, its hardware, its folder."""
    if config.threads is not None:
        check_threads(config.threads)
    check_workers(config)
    check_env(config)
    if config.out is not None:
        check_free(config.out)


def check_workers(config: TrainConfig) -> None:
    """Refuse more worker processes than there are copies for."""
    if (config.env_workers or 1) > config.copies:
        raise UserError(
            f"--env-workers is {config.env_workers}, but there "
            f"{'is only 1 copy' if config.copies == 1 else f'are only {config.copies} copies'} to share (--copies)."
        )


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
