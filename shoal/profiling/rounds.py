"""Rounds of training under the clock: 100 samples and one update of all trainers, each cell in turn with the others."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.profiling.cells import Cell
from shoal.profiling.counters import Counters, PhaseCounters
from shoal.profiling.energy import EnergyMeter
from shoal.profiling.machine import Neighbours
from shoal.profiling.subjects import Subject
from shoal.training.clock import UPDATE_ALL_TRAINERS, by_phase

ENOUGH = 3  # rounds; fewer are said to be cut short
ACTING = 0.25  # share of a cell's time that one round's steps may take before they are cut and scaled


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

    def forget(self) -> None:
        """Start over: what there is only warmed up."""
        self.rounds.clear()
        self.scaled.clear()
        self.joules.clear()


def measure(
    cells: Sequence[Cell],
    subjects: Mapping[str, Subject],
    ring: int,
    seconds: float,
    advance: Callable[[float], None],
    counters: Counters | None = None,
    energy: EnergyMeter | None = None,
) -> list[Timing]:
    """Round after round, always of the cell that has had the least time, until each has had its seconds.

    So slow and fast cells are spread over the same minutes, and those alike take turns. All cells are of one world and
    number of agents, for which there is a subject of each implementation. A first round of each warms up and does not
    count, unless it takes all the time there is. `advance` is told of the seconds that count.
    """
    timings = [Timing(cell, ring) for cell in cells]
    spent = [0.0] * len(cells)
    neighbours = Neighbours()
    energy = energy or EnergyMeter()

    def run(k: int) -> float:
        energy.joules()
        start = time.perf_counter()
        one_round(subjects[cells[k].implementation], timings[k], seconds, counters)
        passed = time.perf_counter() - start
        timings[k].joules.append(energy.joules())
        return passed

    for k, timing in enumerate(timings):
        if (used := run(k)) < seconds:
            timing.forget()
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
    training.clock = clock = subject.clock(counters)
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


def update_seconds(phases: Mapping[str, float]) -> float:
    """What "update all trainers" took."""
    return sum(phases[name] for name in UPDATE_ALL_TRAINERS)
