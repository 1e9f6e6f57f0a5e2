"""A profile's records as tables for people and as figures: few columns, shares in per cent, the papers' numbers beside.

Each figure has a panel for every world, algorithm and implementation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from shoal.profiling.profile import PAPER_GROWTH, PAPER_REDUCTION, PAPER_TOTAL_REDUCTION, Profile
from shoal.profiling.records import CELL, EVENTS, Event, Record
from shoal.results import Column, Figure, Panel, Result, Series, Table, Value
from shoal.results.figure import COLOURS, INK
from shoal.system.memory import human_bytes
from shoal.training.clock import PHASES, UPDATE_ALL_TRAINERS

PHASE_COLOURS = {
    "mini-batch sampling": COLOURS[1],
    "target Q": COLOURS[0],
    "Q loss": COLOURS[5],
    "P loss": COLOURS[2],
    "target update": COLOURS[3],
    "action selection": COLOURS[4],
    "replay insertion": COLOURS[7],
    "other": COLOURS[6],
}
RING = Column("ring")
CUT_SHORT = "* cut short: fewer than three rounds, or fewer steps than a round has, scaled up; increase `seconds`."
MISSES = "Cache model: misses in thousands of one update's mini-batches"
MISSES_BESIDE_PAPERS = (
    "Cache model: misses in thousands of the mini-batches of one update of all trainers; "
    f"behind × the growth from half the agents (papers: ×{PAPER_GROWTH} from 3 to 6)"
)
Values = dict[Column, Value]


def profile_result(profile: Profile) -> Result:
    """Everything that a profile shows."""
    figures = [shares_figure(profile.rows), inside_update_figure(profile.rows)]
    if profile.growth:
        figures.append(growth_figure(profile.growth))
    if profile.neighbor:
        figures.append(neighbor_figure(profile.neighbor))
    return Result("profile", "Where the time goes", tables(profile), remarks(profile), figures, asdict(profile))


def remarks(profile: Profile) -> list[str]:
    """What has to be known to read the numbers."""
    busiest = max((record["others"] or 0.0 for record in profile.rows), default=0.0)
    beside = f"Other programs used up to {100 * busiest:.0f} % of the processors meanwhile: times may be too long."
    return [
        profile.machine,
        *([profile.counters] if profile.counters else []),
        *([beside] if busiest > 0.05 else []),
        *([CUT_SHORT] if any(record["cut_short"] for record in profile.rows) else []),
        *profile.failed,
    ]


# ---- tables ---------------------------------------------------------------------------------------------------------


def tables(profile: Profile) -> list[Table]:
    """All tables that a profile has records for."""
    every = [
        time_table(profile.rows),
        update_table(profile.rows),
        growth_table(profile.growth),
        neighbor_table(profile.neighbor),
        misses_table(profile.misses, MISSES_BESIDE_PAPERS),
        counter_table(profile.rows),
        memory_table(profile.memory),
    ]
    return [table for table in every if table.rows]


def without_constants(title: str, rows: Sequence[Values]) -> Table:
    """A table whose constant columns are stated once, in the title."""
    names = [*map(Column, CELL), RING]
    constant = [name for name in names if rows and name in rows[0] and len({row[name] for row in rows}) == 1]
    left = [{name: value for name, value in row.items() if name not in constant} for row in rows]
    said = [f"ring {name.text(rows[0][name])}" if name is RING else str(rows[0][name]) for name in constant]
    return Table.of(f"{title} ({', '.join(said)})" if said else title, left)


def _about(record: Record, ring: bool = False) -> Values:
    """What a record is about; a star behind the agents where a measurement was cut short."""
    about: Values = {Column(name): record[name] for name in CELL if name in record}
    about[Column("agents")] = f"{record['agents']} *" if record.get("cut_short") else record["agents"]
    return about | {RING: record["ring"]} if ring else about


def time_table(times: Sequence[Record]) -> Table:
    """Medians with quartiles, and the share of update all trainers with and without the environment."""
    energy = any(record.get("round_joules") is not None for record in times)
    rows: list[Values] = [
        {
            **_about(record, ring=True),
            Column("round", "ms", ",.1f"): record["round_ms"],
            Column("quartiles"): f"{record['round_ms_low']:,.1f}–{record['round_ms_high']:,.1f}",
            Column("update", "ms", ",.1f"): record["update_ms"],
            Column("update", "%", ".1f"): 100 * record["update_share"],
            Column("with env", "%", ".1f"): 100 * record["update_share_with_environment"],
            Column("acting", "ms", ",.1f"): record["phases_ms"]["action selection"],
            Column("env", "ms", ",.1f"): record["phases_ms"]["environment"],
            **({Column("energy", "J", ",.3g"): record.get("round_joules")} if energy else {}),
            Column("rounds"): record["rounds"],
        }
        for record in times
    ]
    return without_constants("Time of a round: 100 samples and one update of all trainers", rows)


def update_table(times: Sequence[Record]) -> Table:
    """Shares of the update; target Q's three parts beside it."""
    rows: list[Values] = []
    for record in times:
        shares = {Column(name, format=".1f"): 100 * record["shares_of_update"][name] for name in UPDATE_ALL_TRAINERS}
        parts = {
            name.partition(": ")[2]: f"{100 * ms / record['update_ms']:.1f}" for name, ms in record["parts_ms"].items()
        }
        order = ("next action", "target Q next", "target Q")
        together = Column("= next action + target Q next + target Q")
        rows.append({**_about(record), **shares, together: " + ".join(parts.get(name, "–") for name in order)})
    return without_constants("Shares inside update all trainers, %", rows)


def growth_table(growth: Sequence[Record]) -> Table:
    """Ratios."""
    rows: list[Values] = [
        _about(record) | {Column(name, format=".2f"): v for name, v in record.items() if isinstance(v, float)}
        for record in growth
    ]
    return without_constants("Times as long when the agents double", rows)


def neighbor_table(savings: Sequence[Record]) -> Table:
    """Reductions in per cent."""
    rows: list[Values] = [
        {
            **_about(record),
            Column("uniform sampling", "ms", ",.2f"): record["uniform_sampling_ms"],
            Column("neighbour sampling", "ms", ",.2f"): record["sampling_ms"],
            Column("saved of the phase", format=".1f"): 100 * record["sampling_reduction"],
            Column("saved of the total", format=".1f"): 100 * record["total_reduction"],
            Column("by sampling alone", format=".1f"): 100 * record["total_reduction_by_sampling"],
        }
        for record in savings
    ]
    return without_constants("Saved by neighbour sampling, % (without the environment)", rows)


def misses_table(misses: Sequence[Record], title: str = MISSES) -> Table:
    """Thousands of misses, with their growth where half as many agents were measured, too."""
    rows: list[Values] = [
        {
            **_about(record, ring=True),
            Column("mini-batches"): record["minibatches"],
            Column("read and written"): human_bytes(int(record["bytes"])),
            **{
                Column(event.upper() if event[0] == "l" else event): (
                    f"{record[event] / 1e3:,.1f} {times_as_many(record, event)}".rstrip()
                )
                for event in EVENTS
            },
        }
        for record in misses
    ]
    return without_constants(title, rows)


def times_as_many(record: Record, event: Event) -> str:
    """How many times the misses of half the agents, where that is known."""
    ratio = record["growth"] and record["growth"][event]
    return f"×{ratio:.2f}" if ratio else ""


def counter_table(times: Sequence[Record]) -> Table:
    """What the processor counted, where it does."""
    rows: list[Values] = [
        {
            **_about(record),
            Column("phase"): phase,
            **{Column(name, format=",.0f"): count / 1e3 for name, count in counts.items()},
        }
        for record in times
        for phase, counts in record["counts"].items()
    ]
    return without_constants("Counters per round, in thousands", rows)


def memory_table(memory: Sequence[Record]) -> Table:
    """Bytes in readable units."""
    rows: list[Values] = [
        {
            **_about(record, ring=True),
            Column("replay"): human_bytes(record["replay"]),
            Column("networks"): human_bytes(record["networks"]),
            Column("update's peak"): human_bytes(record["update_peak"]),
            Column("policies asked"): record["policy_calls"],
            Column("of other agents"): record["policy_reads"],
        }
        for record in memory
    ]
    return without_constants("Memory", rows)


# ---- figures --------------------------------------------------------------------------------------------------------


def shares_figure(times: Sequence[Record]) -> Figure:
    """Share of each phase in a round without the environment, as the papers take it (their Figure 2)."""
    names = [*UPDATE_ALL_TRAINERS, *(phase for phase in PHASES if phase not in (*UPDATE_ALL_TRAINERS, "environment"))]

    def panel(title: str, records: list[Record]) -> Panel:
        above = [f"{100 * record['update_share']:.0f} %" for record in records]
        return Panel(title, "per cent", _stack(records, names), "agents", list(map(_agents, records)), above)

    title = "Share of the time without the environment\nabove the bars: update all trainers"
    return _figure("shares", title, uniform_only(times), panel)


def inside_update_figure(times: Sequence[Record]) -> Figure:
    """Shares inside "update all trainers" (the papers' Figure 4)."""

    def panel(title: str, records: list[Record]) -> Panel:
        return Panel(title, "per cent", _stack(records, UPDATE_ALL_TRAINERS), "agents", list(map(_agents, records)))

    return _figure("inside-update", "Shares inside update all trainers", uniform_only(times), panel)


def growth_figure(growth: Sequence[Record]) -> Figure:
    """How many times as long each part of the update takes when the agents double (the papers' Figure 3)."""

    def panel(title: str, records: list[Record]) -> Panel:
        series = [
            Series(part, [record[part] for record in records], "bars", colour=PHASE_COLOURS[part])
            for part in UPDATE_ALL_TRAINERS
        ]
        whole = "update all trainers"
        series.append(Series(whole, [record[whole] for record in records], colour=INK))
        ticks = [_agents(record).replace(" to ", "→") for record in records]
        return Panel(title, "times", series, "agents", ticks, level=2.0, level_label="as the agents", points=True)

    return _figure("growth", "Times as long when the agents double", uniform_only(growth), panel)


def neighbor_figure(savings: Sequence[Record]) -> Figure:
    """What neighbour sampling saves in the sampling phase and in the whole (the papers' Figure 5)."""

    def bars(label: str, reduction: str, paper: Mapping[int, float], colour: str, records: list[Record]) -> Series:
        values = [100 * record[reduction] for record in records]
        return Series(label, values, "bars", paper=[paper.get(record["agents"]) for record in records], colour=colour)

    def panel(title: str, records: list[Record]) -> Panel:
        series = [
            bars("sampling phase", "sampling_reduction", PAPER_REDUCTION, COLOURS[1], records),
            bars("total", "total_reduction", PAPER_TOTAL_REDUCTION, COLOURS[0], records),
        ]
        # which of the papers' two texts, where they differ
        texts = [record["sampler"].removeprefix("neighbor").removeprefix("-") for record in records]
        ticks = [f"{_agents(record)}\n{text}".rstrip() for record, text in zip(records, texts, strict=True)]
        return Panel(title, "per cent", series, "agents", ticks, level=0.0)

    return _figure("neighbor", "Time saved by neighbour sampling, without the environment", savings, panel)


def uniform_only(records: Sequence[Record]) -> Sequence[Record]:
    """The records of uniform sampling, or all if there are none: one figure shows one way of sampling."""
    return [record for record in records if record["sampler"] == "uniform"] or records


def _figure(name: str, title: str, records: Sequence[Record], panel: Callable[[str, list[Record]], Panel]) -> Figure:
    """A panel for every world, algorithm and implementation, all with the same scale."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        label = f"{record['implementation']}, {record['algorithm']}\n{record['env']}"
        groups.setdefault(label, []).append(record)
    cut_short = any(record["cut_short"] for record in records)
    remark = "\n* cut short" if cut_short else "" if records else "\nnothing was measured"
    return Figure(name, title + remark, [panel(label, group) for label, group in groups.items()], same_scale=True)


def _stack(times: Sequence[Record], phases: Sequence[str]) -> list[Series]:
    """Bars of a hundred per cent each, one per record."""
    totals = [sum(record["phases_ms"][phase] for phase in phases) for record in times]
    return [
        Series(
            phase,
            [100 * record["phases_ms"][phase] / total for record, total in zip(times, totals, strict=True)],
            "stack",
            colour=PHASE_COLOURS[phase],
        )
        for phase in phases
    ]


def _agents(record: Record) -> str:
    """With a star where it was cut short."""
    return f"{record['agents']}{'*' if record['cut_short'] else ''}"
