"""What is measured: an implementation's world, a full ring and a team for each algorithm, ready to play and learn."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import torch

from shoal.envs.base import EnvSpec
from shoal.errors import UserError, counted
from shoal.lazy import papers
from shoal.profiling.counters import Counters, PhaseCounters
from shoal.replay import Sampler
from shoal.replay.layout import RowLayout, ring_bytes
from shoal.system.memory import free_memory, human_bytes
from shoal.training.clock import PhaseClock
from shoal.training.collector import Collector
from shoal.training.config import TrainConfig
from shoal.training.evaluation import Act, build_env, random_act
from shoal.training.loop import Training, implementation
from shoal.training.resources import update_bytes

PAPER_RING = 1_000_000


class Subject:
    """One implementation in one world, with a full ring that all its algorithms and samplers share."""

    def __init__(self, config: TrainConfig, algorithms: Sequence[str], rows: int) -> None:
        """`config` names the world and the implementation; `rows` transitions fill the ring."""
        config = changed(config, algorithm=algorithms[0], capacity=rows, warmup=1)
        implementation(config).compile_loops(config)
        self.training = Training(config)
        self._teams = {algorithms[0]: self.training.team}
        for algorithm in algorithms[1:]:
            other = changed(config, algorithm=algorithm, capacity=config.copies)
            self._teams[algorithm] = Training(other).team
        self._samplers: dict[str, Sampler] = {config.sampler: self.training.learner.sampler}
        self._config = config
        fill(self.training, rows)

    def use(self, algorithm: str, sampler: str) -> Training:
        """The training, with this algorithm's team and this sampler in it."""
        if sampler not in self._samplers:
            other = changed(self._config, sampler=sampler, capacity=64 * self._config.copies)
            self._samplers[sampler] = Training(other).learner.sampler
        collector, learner = own_collector(self.training), self.training.learner
        collector.actor = learner.team = self._teams[algorithm]
        learner.sampler = self._samplers[sampler]
        return self.training

    def clock(self, counters: Counters | None) -> PhaseClock:
        """A clock at zero, which on CUDA waits for the device, and which reads the counters that there are."""
        wait = torch.cuda.synchronize if self.training.config.device.startswith("cuda") else None
        return PhaseClock(wait) if counters is None else PhaseCounters(counters, wait)


def changed(config: TrainConfig, **settings: Any) -> TrainConfig:
    """The configuration with other settings, whose words are checked where they are used."""
    return dataclasses.replace(config, **settings)


def fill(training: Training, rows: int) -> None:
    """Fill the ring: by random play in a world that is fast enough, else with random rows."""
    if training.config.implementation == "reference":
        papers("reference.profiling").fill(training.ring, rows)
        return
    act = random_act(training.env.spec, 0)
    while len(training.ring) < rows - rows % training.env.copies:
        play_step(training, act)


def play_step(training: Training, act: Act) -> None:
    """Add one step of all copies to the ring, which nobody counts."""
    collector = own_collector(training)
    actions = act(collector.observation)
    step = collector.env.step(actions)
    collector.rows.add(actions, step)
    collector.observation = step.observation


def own_collector(training: Training) -> Collector:
    """The collector of a training without actors in other processes."""
    assert isinstance(training.collector, Collector)
    return training.collector


def rows_that_fit(
    asked: int | None, config: TrainConfig, algorithms: Sequence[str], implementations: Sequence[str]
) -> int:
    """The transitions asked for, if the rings of all implementations can hold them together, or a sentence.

    Where none are asked for: as many as the papers have, or as fit.
    """
    env = build_env(config, 1, 0, stagger=False)
    spec = env.spec
    env.close()
    free = free_memory()
    if free is None:
        return asked or PAPER_RING
    learning = sum(update_bytes(changed(config, algorithm=algorithm), spec) for algorithm in algorithms)
    usable = int(0.7 * free) - learning * len(implementations)
    rows = max(0, usable // sum(transition_bytes(name, spec, config.copies) for name in implementations))
    if rows < config.batch:
        raise UserError(
            f"Beside {counted(spec.agents, 'agent')} there is room for {counted(rows, 'transition')} in "
            f"{human_bytes(free)} of free memory, "
            f"but a mini-batch has {config.batch:,}; profile fewer --agents."
        )
    if asked is not None and rows < asked:
        raise UserError(
            f"--ring is {asked:,}, but rings of {spec.agents} agents have room for {rows:,} transitions in "
            f"{human_bytes(free)} of free memory; ask for no more than that, or for fewer --agents."
        )
    return asked or min(PAPER_RING, rows)


def transition_bytes(name: str, spec: EnvSpec, copies: int) -> int:
    """What an implementation keeps of a transition of all agents, in bytes."""
    if name == "reference":
        return int(papers("reference.profiling").transition_bytes(spec))
    return -(-ring_bytes(spec, RowLayout.of(spec, "float32"), copies, 1000) // (1000 * copies))


def replay_bytes(training: Training) -> int:
    """What the full ring of a training takes."""
    return int(cast(Any, training.ring).nbytes)
