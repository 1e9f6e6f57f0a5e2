"""The parts of a run, and how Shoal's own implementation builds them.

World, stacked agents, one ring for all. Other implementations have modules with the same two functions, `compile_loops`
and `build_parts`: `shoal_papers.reference.training` and `shoal.actorq.training`.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from shoal.algorithms.base import BaseTeam, check_choices
from shoal.algorithms.config import json_object
from shoal.algorithms.native import NativeTeam
from shoal.algorithms.precision import FULL, Precision
from shoal.envs import ADAPTERS, make_env
from shoal.envs.base import EnvSpec, VectorEnv
from shoal.errors import UserError, counted
from shoal.native.runner import why_unusable
from shoal.replay import Ring, Sampler, make_sampler
from shoal.replay.normalisation import Normalisation
from shoal.replay.ring import PARALLEL_BYTES
from shoal.runs.checkpoint import RingStore
from shoal.training.collector import Collecting, Rows
from shoal.training.config import TrainConfig
from shoal.training.evaluation import build_env
from shoal.training.resources import check_update_memory, make_device, most_samples, native_threads

if TYPE_CHECKING:
    from shoal.training.learner import Learner


class Replay(Rows, RingStore, Protocol):
    """Stores every step of every copy; can be saved in a checkpoint."""

    def __len__(self) -> int:
        """Live transitions of all copies."""


@dataclass
class Parts:
    """The parts that an implementation builds from a configuration; nothing has been played yet."""

    config: TrainConfig  # the configuration, with the settings that the implementation fixes
    env: VectorEnv
    team: BaseTeam
    ring: Replay
    sampler: Sampler
    precision: Precision = FULL
    collector: Collecting | None = None  # None: one that plays in this process
    learner: "Learner | None" = None  # None: one that owes an update for every so many samples
    note: str = ""  # a sentence on how the run learns


class Implementation(Protocol):
    """A module that builds the parts of a run."""

    def compile_loops(self, config: TrainConfig) -> None:
        """Compile everything that such a run calls."""

    def build_parts(self, config: TrainConfig) -> Parts:
        """Build world, team, ring and sampler; invalid settings are detected here."""


def build_parts(config: TrainConfig, env: VectorEnv | None = None) -> Parts:
    """Build the engine's world (unless it is given), team, ring and sampler."""
    env = env or build_env(config, config.copies, config.seed, config.stagger)
    spec = env.spec
    check_choices(spec, config.algorithm)
    reserved = check_update_memory(config, spec)
    options = json_object("sampler_options", config.sampler_options)
    sampler = make_sampler(config.sampler, config.neighbors, config.include_center, options)
    ring = Ring(spec, config.copies, config.capacity, config.storage, most_samples(config, spec), reserved)
    if sampler.needs > ring.capacity_per_copy:
        raise UserError(
            f"`sampler={config.sampler}` needs {counted(sampler.needs, 'transition')} per copy, but "
            f"`capacity={config.capacity}` holds {ring.capacity_per_copy} for each of "
            f"{counted(config.copies, 'copy', 'copies')}."
        )
    config, note = chosen_update(config, spec)
    if config.update == "native":
        native = NativeTeam(spec, config, config.seed, native_threads(config))
        return Parts(config, env, native, ring, sampler, note=note)
    from shoal.algorithms import make_team  # torch is imported only if the team learns there
    from shoal.training.precision import make_precision

    team = make_team(spec, config, config.seed, make_device(config.device))
    return Parts(config, env, team, ring, sampler, make_precision(team, config), note=note)


def chosen_update(config: TrainConfig, spec: EnvSpec | None = None) -> tuple[TrainConfig, str]:
    """The settings with the update that the run learns with, and why it is that one."""
    reason = config.why_torch(spec)
    if reason is None and config.update == "torch":
        return config, "Learning in torch, as `update` says."
    if (reason := reason or why_unusable()) is not None and config.update == "native":
        raise UserError(f"`update` is native, but {reason}; a new run can have `update=torch`.")
    if reason is not None:
        return dataclasses.replace(config, update="torch"), f"Learning in torch: {reason}."
    threads = counted(native_threads(config), "thread")
    return dataclasses.replace(config, update="native"), f"Learning in native code on {threads}."


def compile_loops(config: TrainConfig) -> None:
    """Compile the numba kernels that the run will call, or load them from the cache, before the clock starts."""
    if config.update != "torch" and config.why_torch() is None:
        why_unusable()
    foreign = config.env.startswith(ADAPTERS)  # has no kernels, and may have side effects
    twin = make_env("cooperative-navigation", 1) if foreign else build_env(config, 1, 0, stagger=False)
    spec = twin.spec
    known = "uniform" if ":" in config.sampler else config.sampler
    sampler = make_sampler(known, config.neighbors, config.include_center)
    ring = Ring(spec, 1, 2 * sampler.needs, config.storage)
    statistics = Normalisation(spec, config.normalize_observations, config.normalize_rewards, config.discount)
    first = twin.reset()
    ring.begin(first)
    statistics.begin(first)
    actions = np.zeros((1, spec.agents, spec.action_size), np.float32)
    for _ in range(sampler.needs):
        step = twin.step(actions)
        ring.add(actions, step)
        statistics.add(step)
    statistics.observed(first)
    large = PARALLEL_BYTES // ring.layout.sample_bytes + 1  # small batches are gathered by one thread, others by all
    for rows in (1, min(large, config.batch)):
        ring.sample(sampler, rows, np.random.default_rng(0), n_step=config.n_step)
    ring.sample(sampler, 1, np.random.default_rng(0), n_step=2)  # a diagnosis sees longer returns
