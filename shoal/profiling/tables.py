"""A profile's rows as tables for people: few columns, shares in per cent."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.profiling.misses import EVENTS, Event
from shoal.profiling.profile import PAPER_GROWTH, Profile
from shoal.profiling.rows import GrowthRow, MemoryRow, MissesRow, SavingRow, TimeRow
from shoal.results import Column, Table, Value
from shoal.system.memory import human_bytes
from shoal.training.clock import UPDATE_ALL_TRAINERS

Cells = dict[Column, Value]
RING = Column("ring")
CUT_SHORT = "* cut short: fewer than three rounds, or fewer steps than a round has, scaled up; increase --seconds."


def tables(found: Profile) -> list[Table]:
    """All tables that a profile has something for."""
    misses = (
        "Cache model: misses in thousands of the mini-batches of one update of all trainers; "
        f"behind × the growth from half the agents (papers: ×{PAPER_GROWTH} from 3 to 6)"
    )
    made = [
        time_table(found.rows),
        update_table(found.rows),
        growth_table(found.growth),
        neighbor_table(found.neighbor),
        misses_table(found.misses, misses),
        counter_table(found.rows),
        memory_table(found.memory),
    ]
    return [table for table in made if table.rows]


def remarks(found: Profile) -> list[str]:
    """What has to be known about the figures."""
    busiest = max((row["others"] or 0.0 for row in found.rows), default=0.0)
    beside = f"Other programs used up to {100 * busiest:.0f} % of the processors meanwhile: times may be too long."
    return [
        found.machine,
        *([found.counters] if found.counters else []),
        *([beside] if busiest > 0.05 else []),
        *([CUT_SHORT] if any(row["cut_short"] for row in found.rows) else []),
        *found.failed,
    ]


def without_constants(title: str, rows: Sequence[Cells]) -> Table:
    """A table in which columns that say the same in every row are said once, in the title."""
    names = [*(Column(name) for name in ("env", "algorithm", "implementation", "sampler")), RING]
    constant = [name for name in names if rows and name in rows[0] and len({row[name] for row in rows}) == 1]
    left = [{name: value for name, value in row.items() if name not in constant} for row in rows]
    said = [f"ring {name.text(rows[0][name])}" if name is RING else str(rows[0][name]) for name in constant]
    return Table.of(f"{title} ({', '.join(said)})" if said else title, left)


def _about(row: Mapping[str, Any]) -> Cells:
    """What a row is about; a star behind the agents where a measurement was cut short."""
    names = ("env", "algorithm", "implementation", "sampler")
    agents = f"{row['agents']} *" if row.get("cut_short") else row["agents"]
    return {Column(name): row[name] for name in names if name in row} | {Column("agents"): agents}


def time_table(rows: Sequence[TimeRow]) -> Table:
    """Medians with quartiles, and the share of update all trainers with and without the environment."""
    energy = any(row.get("round_joules") is not None for row in rows)
    cells: list[Cells] = [
        {
            **_about(row),
            RING: row["ring"],
            Column("round", "ms", ",.1f"): row["round_ms"],
            Column("quartiles"): f"{row['round_ms_low']:,.1f}–{row['round_ms_high']:,.1f}",
            Column("update", "ms", ",.1f"): row["update_ms"],
            Column("update", "%", ".1f"): 100 * row["update_share"],
            Column("with env", "%", ".1f"): 100 * row["update_share_with_environment"],
            Column("acting", "ms", ",.1f"): row["phases_ms"]["action selection"],
            Column("env", "ms", ",.1f"): row["phases_ms"]["environment"],
            **({Column("energy", "J", ",.3g"): row.get("round_joules")} if energy else {}),
            Column("rounds"): row["rounds"],
        }
        for row in rows
    ]
    return without_constants("Time of a round: 100 samples and one update of all trainers", cells)


def update_table(rows: Sequence[TimeRow]) -> Table:
    """Shares of the update; target Q's three parts beside it."""
    cells: list[Cells] = []
    for row in rows:
        shares = {Column(name, format=".1f"): 100 * row["shares_of_update"][name] for name in UPDATE_ALL_TRAINERS}
        parts = {
            name.partition(": ")[2]: f"{100 * passed / row['update_ms']:.1f}"
            for name, passed in row["parts_ms"].items()
        }
        order = ("next action", "target Q next", "target Q")
        together = Column("= next action + target Q next + target Q")
        cells.append({**_about(row), **shares, together: " + ".join(parts.get(name, "–") for name in order)})
    return without_constants("Shares inside update all trainers, %", cells)


def growth_table(rows: Sequence[GrowthRow]) -> Table:
    """Ratios."""
    cells: list[Cells] = [
        _about(row) | {Column(name, format=".2f"): v for name, v in row.items() if isinstance(v, float)} for row in rows
    ]
    return without_constants("Times as long when the agents double", cells)


def neighbor_table(rows: Sequence[SavingRow]) -> Table:
    """Reductions in per cent."""
    cells: list[Cells] = [
        {
            **_about(row),
            Column("uniform sampling", "ms", ",.2f"): row["uniform_sampling_ms"],
            Column("neighbour sampling", "ms", ",.2f"): row["sampling_ms"],
            Column("saved of the phase", format=".1f"): 100 * row["sampling_reduction"],
            Column("saved of the total", format=".1f"): 100 * row["total_reduction"],
            Column("by sampling alone", format=".1f"): 100 * row["total_reduction_by_sampling"],
        }
        for row in rows
    ]
    return without_constants("Saved by neighbour sampling, % (without the environment)", cells)


def misses_table(
    rows: Sequence[MissesRow], title: str = "Cache model: misses in thousands of one update's mini-batches"
) -> Table:
    """Thousands of misses, with their growth where half as many agents were measured too."""
    cells: list[Cells] = [
        {
            **_about(row),
            RING: row["ring"],
            Column("mini-batches"): row["minibatches"],
            Column("read and written"): human_bytes(int(row["bytes"])),
            **{
                Column(event.upper() if event[0] == "l" else event): (
                    f"{row[event] / 1e3:,.1f} {times(row, event)}".rstrip()
                )
                for event in EVENTS
            },
        }
        for row in rows
    ]
    return without_constants(title, cells)


def times(row: MissesRow, event: Event) -> str:
    """How many times the misses of half the agents, where that is known."""
    ratio = row["growth"] and row["growth"][event]
    return f"×{ratio:.2f}" if ratio else ""


def counter_table(rows: Sequence[TimeRow]) -> Table:
    """What the processor counted, where it does."""
    cells: list[Cells] = [
        {
            **_about(row),
            Column("phase"): phase,
            **{Column(name, format=",.0f"): count / 1e3 for name, count in counts.items()},
        }
        for row in rows
        for phase, counts in row["counts"].items()
    ]
    return without_constants("Counters per round, in thousands", cells)


def memory_table(rows: Sequence[MemoryRow]) -> Table:
    """Bytes in readable units."""
    cells: list[Cells] = [
        {
            **_about(row),
            RING: row["ring"],
            Column("replay"): human_bytes(row["replay"]),
            Column("networks"): human_bytes(row["networks"]),
            Column("update's peak"): human_bytes(row["update_peak"]),
            Column("policies asked"): row["policy_calls"],
            Column("of other agents"): row["policy_reads"],
        }
        for row in rows
    ]
    return without_constants("Memory", cells)
