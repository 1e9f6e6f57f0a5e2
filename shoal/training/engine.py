"""The engine's builder: a vectorised world, stacked agents, one ring for all."""

import dataclasses

from shoal.algorithms.base import check_choices
from shoal.algorithms.native import NativeTeam
from shoal.algorithms.precision import FULL, Precision
from shoal.envs.base import EnvSpec, VectorEnv
from shoal.errors import UserError, counted
from shoal.native.engine import why_unusable
from shoal.replay import Ring, make_sampler
from shoal.training.config import TrainConfig
from shoal.training.evaluation import build_env
from shoal.training.parts import LearningTeam, Parts
from shoal.training.setup import check_update_memory, compile_loops, make_device, most_samples, native_threads

__all__ = ["build_parts", "compile_loops"]


def build_parts(config: TrainConfig, env: VectorEnv | None = None) -> Parts:
    """Build the engine's world (unless it is given), team, ring and sampler."""
    env = env or build_env(config, config.copies, config.seed, config.stagger)
    spec = env.spec
    check_choices(spec, config.algorithm)
    reserved = check_update_memory(config, spec)
    sampler = make_sampler(config.sampler, config.neighbors, config.include_center)
    ring = Ring(spec, config.copies, config.capacity, config.storage, most_samples(config, spec), reserved)
    if sampler.needs > ring.capacity_per_copy:
        raise UserError(
            f"--sampler {config.sampler} needs {counted(sampler.needs, 'transition')} per copy, but "
            f"--capacity {config.capacity} holds {ring.capacity_per_copy} for each of "
            f"{counted(config.copies, 'copy', 'copies')}."
        )
    config, note = chosen_update(config)
    team, precision = build_team(config, spec)
    return Parts(config, env, team, ring, sampler, precision, note=note)


def build_team(config: TrainConfig, spec: EnvSpec) -> tuple[LearningTeam, Precision]:
    """The team, and the precision that it learns in; torch is imported only if it learns there."""
    if config.update == "native":
        return NativeTeam(spec, config, config.seed, native_threads(config)), FULL
    from shoal.algorithms import make_team
    from shoal.training.precision import make_precision

    team = make_team(spec, config, config.seed, make_device(config.device))
    return team, make_precision(team, config)


def chosen_update(config: TrainConfig) -> tuple[TrainConfig, str]:
    """The settings with the update that the run learns with, and why it is that one."""
    reason = config.why_torch()
    if reason is None and config.update == "torch":
        return config, "Learning in torch, as --update says."
    if reason is None and (reason := why_unusable()) is not None and config.update == "native":
        raise UserError(f"--update is native, but {reason}; a new run can have --update torch.")
    if reason is not None:
        return dataclasses.replace(config, update="torch"), f"Learning in torch: {reason}."
    threads = counted(native_threads(config), "thread")
    return dataclasses.replace(config, update="native"), f"Learning in native code on {threads}."
