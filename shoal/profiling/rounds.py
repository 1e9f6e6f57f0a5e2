"""Rounds of training under the clock: 100 samples and one update of all trainers, cells in turns.

A `Subject` is an implementation's world, a full ring and a team for each algorithm, ready to play and learn.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shoal.envs.base import EnvSpec
from shoal.errors import UserError, counted
from shoal.lazy import papers
from shoal.profiling.cells import Cell
from shoal.profiling.counters import Counters, EnergyMeter, Neighbours, PhaseCounters
from shoal.replay import Sampler
from shoal.replay.layout import RowLayout, ring_bytes
from shoal.system.memory import free_memory, human_bytes
from shoal.training.clock import PhaseClock, by_phase
from shoal.training.collector import Collector
from shoal.training.config import TrainConfig
from shoal.training.evaluation import Act, build_env, random_act
from shoal.training.loop import Training, implementation
from shoal.training.resources import update_bytes

PAPER_RING = 1_000_000
ENOUGH = 3  # rounds; with fewer, a cell is marked as cut short
ACTING = 0.25  # share of a cell's time that one round's steps may take before they are cut and scaled


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
        if config.implementation == "reference":  # with random rows: its world is slow
            papers("reference.profiling").fill(self.training.ring, rows)
            return
        act = random_act(self.training.env.spec, 0)
        while len(self.training.ring) < rows - rows % config.copies:
            play_step(self.training, act)

    def use(self, algorithm: str, sampler: str) -> Training:
        """The training, with this algorithm's team and this sampler in it."""
        if sampler not in self._samplers:
            other = changed(self._config, sampler=sampler, capacity=64 * self._config.copies)
            self._samplers[sampler] = Training(other).learner.sampler
        collector, learner = own_collector(self.training), self.training.learner
        collector.actor = learner.team = self._teams[algorithm]
        learner.sampler = self._samplers[sampler]
        return self.training


def changed(config: TrainConfig, **settings: Any) -> TrainConfig:
    """The configuration with other settings, whose words are checked where they are used."""
    return dataclasses.replace(config, **settings)


def play_step(training: Training, act: Act) -> None:
    """Add one step of all copies to the ring, outside all counts of training."""
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
    """The capacity of each ring: the given one, else the papers', or less if the rings together would not fit.

    A given one that does not fit is a `UserError`.
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
            f"but a mini-batch has {config.batch:,}; profile fewer `agents`."
        )
    if asked is not None and rows < asked:
        raise UserError(
            f"`ring` is {asked:,}, but rings of {spec.agents} agents have room for {rows:,} transitions in "
            f"{human_bytes(free)} of free memory; ask for no more than that, or for fewer `agents`."
        )
    return asked or min(PAPER_RING, rows)


def transition_bytes(name: str, spec: EnvSpec, copies: int) -> int:
    """What an implementation keeps of a transition of all agents, in bytes."""
    if name == "reference":
        return int(papers("reference.profiling").transition_bytes(spec))
    return -(-ring_bytes(spec, RowLayout.of(spec, "float32"), copies, 1000) // (1000 * copies))


# ---- rounds -----------------------------------------------------------------------------------------------


@dataclass
class Timing:
    """The rounds of one cell."""

    cell: Cell
    ring: int
    """Transitions in the ring."""
    rounds: list[dict[str, float]] = field(default_factory=list)
    """Seconds of each phase, the parts of target Q apart, for `update_every` samples and one update."""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """The processor's counters of each phase, of the last round."""
    others: float | None = None
    """Share of the processors' time that other programs used meanwhile."""
    scaled: list[bool] = field(default_factory=list)
    """Of each round, whether fewer steps than it has were played and their times scaled up."""
    joules: list[float | None] = field(default_factory=list)
    """Energy of each round; None without counters."""

    @property
    def cut_short(self) -> bool:
        """Whether the time ran out before there was enough to tell a median."""
        return any(self.scaled) or len(self.rounds) < ENOUGH

    def seconds(self) -> dict[str, float]:
        """The median of each phase, and of each part of target Q."""
        names = {name for one in self.rounds for name in one}
        return {name: statistics.median(one.get(name, 0.0) for one in self.rounds) for name in sorted(names)}

    def round_joules(self) -> float | None:
        """Mean energy of a round: counters move in steps of a millisecond. None without counters, or if scaled."""
        used = [joules for joules in self.joules if joules is not None]
        return statistics.fmean(used) if used and not any(self.scaled) else None

    def phases(self) -> dict[str, float]:
        """The median of each phase."""
        return by_phase(self.seconds())

    def totals(self) -> list[float]:
        """Seconds of each whole round."""
        return [sum(one.values()) for one in self.rounds]


def measure(
    cells: Sequence[Cell],
    subjects: Mapping[str, Subject],
    ring: int,
    seconds: float,
    advance: Callable[[float], None],
    counters: Counters | None = None,
) -> list[Timing]:
    """Round after round, always of the cell that has had the least time, until each has had its seconds.

    So slow and fast cells are spread over the same minutes, and those alike take turns. All cells are of one world and
    number of agents, for which there is a subject of each implementation. A first round of each warms up and does not
    count, unless it takes all the time there is. `advance` is called with the seconds that count.
    """
    timings, spent = [Timing(cell, ring) for cell in cells], [0.0] * len(cells)
    neighbours, energy = Neighbours(), EnergyMeter()

    def run(k: int) -> float:
        energy.joules()
        start = time.perf_counter()
        one_round(subjects[cells[k].implementation], timings[k], seconds, counters)
        passed = time.perf_counter() - start
        timings[k].joules.append(energy.joules())
        return passed

    for k, cell in enumerate(cells):
        if (used := run(k)) < seconds:
            timings[k] = Timing(cell, ring)  # without the warm-up
        else:
            spent[k] = used
            advance(seconds)
    while (least := min(spent)) < seconds:
        k = spent.index(least)
        used = run(k)
        advance(min(used, seconds - least))
        spent[k] += used
    for timing in timings:
        timing.others = neighbours.share()
    return timings


def one_round(subject: Subject, timing: Timing, seconds: float, counters: Counters | None = None) -> None:
    """The steps of one update, and the update."""
    training = subject.use(timing.cell.algorithm, timing.cell.sampler)
    wait = torch.cuda.synchronize if training.config.device.startswith("cuda") else None
    training.clock = clock = PhaseClock(wait) if counters is None else PhaseCounters(counters, wait)
    every, copies = training.config.update_every, training.config.copies
    needed, steps = math.ceil(every / copies), 0
    deadline = time.perf_counter() + ACTING * seconds
    while steps < needed and (steps == 0 or time.perf_counter() < deadline):
        training.step()
        steps += 1
    clock("other")
    acting = dict(clock.seconds)
    training.update()
    clock("other")
    scale = every / (steps * copies)
    timing.scaled.append(steps < needed)
    timing.rounds.append({name: passed + (scale - 1) * acting.get(name, 0.0) for name, passed in clock.seconds.items()})
    if isinstance(clock, PhaseCounters):
        timing.counts = clock.counts_by_phase()
