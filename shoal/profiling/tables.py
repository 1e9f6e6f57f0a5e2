"""A profile's rows as tables for people: few columns, units in the heads, shares in per cent."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.memory import human_bytes
from shoal.profiling.misses import EVENTS
from shoal.profiling.profile import PAPER_GROWTH
from shoal.training.clock import UPDATE_ALL_TRAINERS

Row = Mapping[str, Any]
Table = tuple[str, list[dict[str, Any]]]
"""A title, and rows of named cells."""


CUT_SHORT = "* cut short: fewer than three rounds, or fewer steps than a round has, scaled up; increase --seconds."


def tables(found: Mapping[str, Any]) -> list[Table]:
    """All tables that a profile has something for."""
    made = [
        ("Time of a round: 100 samples and one update of all trainers", time_table(found["rows"])),
        ("Shares inside update all trainers, %", update_table(found["rows"])),
        ("Times as long when the agents double", growth_table(found["growth"])),
        ("Saved by neighbour sampling, % (without the environment)", neighbor_table(found["neighbor"])),
        (
            "Cache model: misses in thousands of the mini-batches of one update of all trainers; "
            f"behind × the growth from half the agents (papers: ×{PAPER_GROWTH} from 3 to 6)",
            misses_table(found["misses"]),
        ),
        ("Counters per round, in thousands", counter_table(found["rows"])),
        ("Memory", memory_table(found["memory"])),
    ]
    return [without_constants(title, rows) for title, rows in made if rows]


def remarks(found: Mapping[str, Any]) -> list[str]:
    """What has to be known about the figures."""
    busiest = max((row["others"] or 0.0 for row in found["rows"]), default=0.0)
    beside = f"Other programs used up to {100 * busiest:.0f} % of the processors meanwhile: times may be too long."
    return [
        found["machine"],
        *([found["counters"]] if found["counters"] else []),
        *([beside] if busiest > 0.05 else []),
        *([CUT_SHORT] if any(row["cut_short"] for row in found["rows"]) else []),
        *found["failed"],
    ]


def without_constants(title: str, rows: list[dict[str, Any]]) -> Table:
    """Columns that say the same in every row are said once, in the title."""
    names = [name for name in ("env", "algorithm", "implementation", "sampler") if name in rows[0]]
    constant = [name for name in names if len({row[name] for row in rows}) == 1]
    left = [{name: value for name, value in row.items() if name not in constant} for row in rows]
    return f"{title} ({', '.join(rows[0][name] for name in constant)})" if constant else title, left


def _cell(row: Row) -> dict[str, Any]:
    """What a row is about; a star behind the agents where a measurement was cut short."""
    names = ("env", "algorithm", "implementation", "sampler", "agents")
    about = {name: row[name] for name in names if name in row}
    return about | {"agents": f"{about['agents']} *"} if row.get("cut_short") else about


def time_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Medians with quartiles, and the share of update all trainers with and without the environment."""
    return [
        {
            **_cell(row),
            "ring": f"{row['ring']:,}",
            "round, ms": f"{row['round_ms']:,.1f}",
            "quartiles": f"{row['round_ms_low']:,.1f}–{row['round_ms_high']:,.1f}",
            "update, ms": f"{row['update_ms']:,.1f}",
            "update, %": f"{100 * row['update_share']:.1f}",
            "with env, %": f"{100 * row['update_share_with_environment']:.1f}",
            "acting, ms": f"{row['phases_ms']['action selection']:,.1f}",
            "env, ms": f"{row['phases_ms']['environment']:,.1f}",
            "rounds": row["rounds"],
        }
        for row in rows
    ]


def update_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Shares of the update; target Q's three parts beside it."""
    made = []
    for row in rows:
        shares = {name: f"{100 * row['shares_of_update'][name]:.1f}" for name in UPDATE_ALL_TRAINERS}
        parts = {
            name.partition(": ")[2]: f"{100 * passed / row['update_ms']:.1f}"
            for name, passed in row["parts_ms"].items()
        }
        order = ("next action", "target Q next", "target Q")
        made.append(
            {
                **_cell(row),
                **shares,
                "= next action + target Q next + target Q": " + ".join(parts.get(name, "–") for name in order),
            }
        )
    return made


def growth_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Ratios."""
    return [_cell(row) | {name: f"{v:.2f}" for name, v in row.items() if isinstance(v, float)} for row in rows]


def neighbor_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Reductions in per cent."""
    return [
        {
            **_cell(row),
            "uniform sampling, ms": f"{row['uniform_sampling_ms']:,.2f}",
            "neighbour sampling, ms": f"{row['sampling_ms']:,.2f}",
            "saved of the phase": f"{100 * row['sampling_reduction']:.1f}",
            "saved of the total": f"{100 * row['total_reduction']:.1f}",
            "by sampling alone": f"{100 * row['total_reduction_by_sampling']:.1f}",
        }
        for row in rows
    ]


def misses_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Thousands of misses, with their growth where half as many agents were measured too."""
    return [
        {
            **_cell(row),
            "ring": f"{row['ring']:,}",
            "mini-batches": row["minibatches"],
            "read and written": human_bytes(int(row["bytes"])),
            **{
                event.upper() if event[0] == "l" else event: f"{row[event] / 1e3:,.1f} {times(row, event)}".rstrip()
                for event in EVENTS
            },
        }
        for row in rows
    ]


def times(row: Row, event: str) -> str:
    """How many times the misses of half the agents, where that is known."""
    ratio = row["growth"] and row["growth"][event]
    return f"×{ratio:.2f}" if ratio else ""


def counter_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What the processor counted, where it does."""
    return [
        {**_cell(row), "phase": phase, **{name: f"{count / 1e3:,.0f}" for name, count in counts.items()}}
        for row in rows
        for phase, counts in row["counts"].items()
    ]


def memory_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Bytes in readable units."""
    return [
        {
            **_cell(row),
            "ring": f"{row['ring']:,}",
            "replay": human_bytes(row["replay"]),
            "networks": human_bytes(row["networks"]),
            "update's peak": human_bytes(row["update_peak"]),
            "policies asked": row["policy_calls"],
            "of other agents": row["policy_reads"],
        }
        for row in rows
    ]
