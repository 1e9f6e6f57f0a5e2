"""Refusals that need neither torch nor numba, so that a mistake costs a moment and not the seconds of their import."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from shoal.algorithms.config import json_object, own_settings
from shoal.errors import UserError
from shoal.plugins import check_options, load_class
from shoal.runs.folder import check_free
from shoal.system.processors import check_threads
from shoal.training.config import TrainConfig
from shoal.training.evaluation import check_env
from shoal.training.tracking import check_tracker
from shoal.training.world_file import needs_trust
from shoal.trust import CODE, check_trusted, untrusted


def check_new(config: TrainConfig) -> None:
    """Refuse a new run that could not start: its world, its hardware, its folder."""
    config.check_evaluated()
    check_own_code(config)
    check_tracker(config.track)
    check_hardware(config)
    check_env(config)
    if config.implementation == "engine" and config.capacity < config.copies:  # the reference has only one copy
        raise UserError(f"`capacity` is {config.capacity}, but must be at least {config.copies}, one for each copy.")
    if config.out is not None:
        check_free(config.out)


def check_code(
    config: TrainConfig, folder: Path, named: Mapping[str, Any], trust: bool, used: Collection[str] = CODE
) -> None:
    """Refuse a run with third-party code, unless the user trusts it, names the same code, or trained the run here.

    `used`: the settings whose code will run.
    """
    for setting in used:
        stored = {name: getattr(config, name) for name in (setting, f"{setting}_options")}
        code, options = ("" if named.get(name) == value else value for name, value in stored.items())
        if not trust and untrusted(code, options, setting) and needs_trust(config, folder):
            check_trusted(f"The run in '{folder}'", code, options, trust, setting)


def check_own_code(config: TrainConfig) -> None:
    """Refuse settings and options that a third-party algorithm or sampler does not have."""
    if ":" in config.algorithm:
        from shoal.algorithms import algorithm_class, base_algorithm

        kind = algorithm_class(config.algorithm)
        config.check_as(base_algorithm(kind), own_settings(config.algorithm))
        check_options("algorithm", kind, 4, json_object("algorithm_options", config.algorithm_options))
    if ":" in config.sampler:
        kind = load_class("sampler", config.sampler)
        check_options("sampler", kind, 0, json_object("sampler_options", config.sampler_options))


def check_hardware(config: TrainConfig) -> None:
    """Refuse more threads than there are processors, and more worker processes than there are copies for."""
    if config.threads is not None:
        check_threads(config.threads)
    if (config.env_workers or 1) > config.copies:
        raise UserError(
            f"`env_workers` is {config.env_workers}, but there "
            f"{'is only 1 copy' if config.copies == 1 else f'are only {config.copies} copies'} to share (`copies`)."
        )
