"""Refusals that need neither torch nor numba, so that a mistake costs a moment and not the seconds of their import."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.runs.folder import check_free
from shoal.system.processors import check_threads
from shoal.training.config import TrainConfig
from shoal.training.evaluation import check_env
from shoal.training.world_file import needs_trust
from shoal.trust import check_trusted, untrusted


def check_new(config: TrainConfig) -> None:
    """Refuse a new run that could not start: its world, its hardware, its folder."""
    config.check_evaluated()
    check_hardware(config)
    check_env(config)
    if config.implementation == "engine" and config.capacity < config.copies:  # the reference has only one copy
        raise UserError(f"`capacity` is {config.capacity}, but must be at least {config.copies}, one for each copy.")
    if config.out is not None:
        check_free(config.out)


def check_world(config: TrainConfig, folder: Path, named: Mapping[str, Any], trust: bool) -> None:
    """Refuse a run whose world is third-party code, unless the user trusts it, names the same, or trained it here."""
    stored = {"env": config.env, "env_options": config.env_options}
    env, options = ("" if named.get(name) == value else value for name, value in stored.items())
    if not trust and untrusted(env, options) and needs_trust(config, folder):
        check_trusted(f"The run in '{folder}'", env, options, trust)


def check_hardware(config: TrainConfig) -> None:
    """Refuse more threads than there are processors, and more worker processes than there are copies for."""
    if config.threads is not None:
        check_threads(config.threads)
    if (config.env_workers or 1) > config.copies:
        raise UserError(
            f"`env_workers` is {config.env_workers}, but there "
            f"{'is only 1 copy' if config.copies == 1 else f'are only {config.copies} copies'} to share (`copies`)."
        )
