"""Figures 2 to 5: where the time of training goes, how it grows with the agents, what neighbour sampling saves.

All are made of one profile of both implementations. Cells have one thread: threads that wait for each other make times
depend on other load on the machine.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

from shoal.errors import UserError, counted
from shoal.profiling.cells import Sweep
from shoal.profiling.profile import PAPER_GROWTH, PAPER_REDUCTION, PAPER_TOTAL_REDUCTION, Profile, profile
from shoal.profiling.records import Record
from shoal.profiling.result import (
    growth_figure,
    growth_table,
    inside_update_figure,
    misses_table,
    neighbor_figure,
    neighbor_table,
    shares_figure,
    time_table,
    times_as_many,
    uniform_only,
    update_table,
)
from shoal.results import Figure, Result, Table
from shoal.waiting import Advance
from shoal_papers.cells import Options
from shoal_papers.study import Data, Study

PAPER_AGENTS = (3, 6, 12, 24, 48)


class ProfileStudy(Study):
    """A study of a profile, by default with uniform sampling in all the papers' cells."""

    tables: ClassVar[dict[str, Callable[[list[Record]], Table]]]
    """Tables by the part of the profile that they show."""
    figure: ClassVar[tuple[str, Callable[[list[Record]], Figure]]]
    """The papers' figure, likewise."""
    misses = False
    """Run the samplers through the cache model."""

    def sweep(self, quick: bool) -> Sweep:
        """Both algorithms and worlds at all the papers' numbers of agents; quick: MADDPG in predator-prey at three."""
        common: dict[str, Any] = {"sampler": ("uniform",), "misses": self.misses, "memory": False, "threads": 1}
        if quick:
            return Sweep((3, 6, 12), ring=50_000, seconds=4.0, **common)
        envs = ("predator-prey", "cooperative-navigation")
        return Sweep(PAPER_AGENTS, ("maddpg", "masac"), envs, seconds=6.0, **common)

    def length(self, quick: bool, options: Options) -> float:
        return self.sweep(quick).total_seconds

    def run(self, quick: bool, advance: Advance, options: Options) -> Result:
        measured = profile(self.sweep(quick), advance)
        if not measured.rows:
            raise UserError(f"Nothing could be measured: {' '.join(measured.failed)}")
        return self.show(measured)

    def result(self, data: Data) -> Result:
        return self.show(Profile(**data))

    def show(self, measured: Profile) -> Result:
        """What the study takes from a profile."""
        tables = [table_of(getattr(measured, part)) for part, table_of in self.tables.items()]
        findings = [*self.findings(measured), circumstances(measured)]
        part, figure_of = self.figure
        figure = replace(figure_of(getattr(measured, part)), name=self.name)
        filled = [table for table in tables if table.rows]
        return Result(self.name, self.title, filled, findings, [figure], asdict(measured))

    def findings(self, measured: Profile) -> Iterable[str]:
        """The papers' numbers, and ours beside them."""
        raise NotImplementedError


class Breakdown(ProfileStudy, name="breakdown"):
    """Update all trainers takes 35 % of the time without the environment at 3 agents, 85 % at 48."""

    title = "Training time by phase (Figure 2)"
    tables: ClassVar = {"rows": time_table}
    figure: ClassVar = ("rows", shares_figure)

    def findings(self, measured: Profile) -> Iterable[str]:
        yield "Papers: update all trainers is about 35 % at 3 agents and 85 % at 48."
        for name, records in by_panel(measured.rows).items():
            first, last = records[0], records[-1]
            verb = "rises" if last["update_share"] > first["update_share"] else "does not rise"
            yield (
                f"{name}: {100 * first['update_share']:.0f} % at {counted(first['agents'], 'agent')} and "
                f"{100 * last['update_share']:.0f} % at {last['agents']}: the share {verb}."
            )


class Growth(ProfileStudy, name="growth"):
    """The time of an update grows faster than the agents, and cache and dTLB misses 3.9 times from 3 to 6."""

    title = "Growth when the number of agents doubles (Figure 3)"
    tables: ClassVar = {"growth": growth_table, "misses": misses_table}
    figure: ClassVar = ("growth", growth_figure)
    misses = True

    def findings(self, measured: Profile) -> Iterable[str]:
        yield (
            "Papers: the update grows faster than the number of agents, and from 3 to 6 agents dTLB load misses and "
            f"cache misses grow {PAPER_GROWTH} times or more."
        )
        for name, records in by_panel(measured.growth).items():
            steps = ", ".join(f"×{record['update all trainers']:.1f} ({record['agents']})" for record in records)
            often = "always" if all(record["update all trainers"] > 2 for record in records) else "not always"
            yield f"{name}: update all trainers {steps}: {often} more than twice."
        if not measured.growth:
            yield "No number of agents was measured together with its half."
        for record in measured.misses:
            if record["growth"] and record["agents"] == 6:
                yield (
                    f"Cache model, {record['implementation']}, {record['sampler']}, {record['env']}, 3 to 6 agents: "
                    f"last-level misses {times_as_many(record, 'l3')}, dTLB misses {times_as_many(record, 'dtlb')}."
                )


class InsideUpdate(ProfileStudy, name="inside-update"):
    """Inside update all trainers, sampling takes 61 % and target Q 21 % (first text), 63 % and 24 % (second)."""

    title = "Inside update all trainers (Figure 4)"
    tables: ClassVar = {"rows": update_table}
    figure: ClassVar = ("rows", inside_update_figure)
    paper: ClassVar[dict[str, dict[str, float]]] = {
        "first text, mean over workloads": {"mini-batch sampling": 61, "target Q": 21, "Q loss": 10, "P loss": 8},
        "second text, mean at 48 agents": {"mini-batch sampling": 63, "target Q": 24, "Q loss": 6.5, "P loss": 6},
    }

    def findings(self, measured: Profile) -> Iterable[str]:
        for text, shares in self.paper.items():
            yield f"Papers, {text}: " + ", ".join(f"{name} {share:g} %" for name, share in shares.items()) + "."
        for name, records in by_panel(measured.rows).items():
            phases = ("mini-batch sampling", "target Q", "Q loss", "P loss")
            means = {
                phase: 100 * sum(record["shares_of_update"][phase] for record in records) / len(records)
                for phase in phases
            }
            yield (
                f"{name}, mean over {', '.join(str(record['agents']) for record in records)} agents: "
                + ", ".join(f"{phase} {share:.1f} %" for phase, share in means.items())
                + f": {max(means, key=lambda phase: means[phase])} is the largest."
            )


class NeighborTime(ProfileStudy, name="neighbor-time"):
    """Neighbour sampling shortens the sampling phase by about 27 %, and training as a whole by 10.2 %."""

    title = "Time saved by neighbour sampling (Figure 5)"
    tables: ClassVar = {"neighbor": neighbor_table, "misses": misses_table}
    figure: ClassVar = ("neighbor", neighbor_figure)

    def sweep(self, quick: bool) -> Sweep:
        """Uniform and neighbour sampling; in full also the papers' two texts of it."""
        if quick:
            samplers: tuple[str, ...] = ("uniform", "neighbor")
            return Sweep((3, 6, 12), sampler=samplers, seconds=3.0, ring=100_000, memory=False, threads=1)
        samplers = ("uniform", "neighbor", "neighbor-v1", "neighbor-v2")
        return Sweep((3, 6, 12), sampler=samplers, seconds=20.0, memory=False, threads=1)

    def findings(self, measured: Profile) -> Iterable[str]:
        yield (
            f"Papers: the sampling phase is {PAPER_REDUCTION[3]} % (3 agents) to {PAPER_REDUCTION[12]} % (12) shorter, "
            f"training as a whole {PAPER_TOTAL_REDUCTION[12]} % (12)."
        )
        if not measured.neighbor:
            yield "Neighbour sampling was not measured together with uniform sampling."
        for record in measured.neighbor:
            paper = PAPER_REDUCTION.get(record["agents"])
            yield (
                f"{record['implementation']}, {record['algorithm']}, {record['env']}, {record['sampler']}, "
                f"{counted(record['agents'], 'agent')}: "
                f"the sampling phase is {100 * record['sampling_reduction']:.1f} % shorter"
                f"{'' if paper is None else f' (papers: {paper} %)'}; this alone shortens the "
                f"whole by {100 * record['total_reduction_by_sampling']:.1f} %."
            )


def by_panel(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records of uniform sampling, if any, by implementation, algorithm and world, each in the order of agents."""
    groups: dict[str, list[Record]] = {}
    for record in sorted(
        uniform_only(records), key=lambda record: int(str(record["agents"]).split()[0])
    ):  # 3, or "3 to 6"
        groups.setdefault(f"{record['implementation']}, {record['algorithm']}, {record['env']}", []).append(record)
    return groups


def circumstances(measured: Profile) -> str:
    """Ring sizes, cells that were cut short or not measured, and other load on the machine."""
    sizes: dict[int, set[int]] = {}
    for record in measured.rows:
        sizes.setdefault(record["agents"], set()).add(record["ring"])
    rings = ", ".join(
        f"{' and '.join(f'{ring:,}' for ring in sorted(rings, reverse=True))} ({counted(agents, 'agent')})"
        for agents, rings in sizes.items()
    )
    sentences = [f"Ring sizes in transitions (papers: 1,000,000): {rings}."]
    if cut := sum(record["cut_short"] for record in measured.rows):
        sentences.append(f"{cut} of {len(measured.rows)} cells were cut short (*).")
    if (busiest := max(record["others"] or 0.0 for record in measured.rows)) > 0.05:
        sentences.append(f"Other programs used up to {100 * busiest:.0f} % of the CPUs: times may be too long.")
    return " ".join([*sentences, *measured.failed])
