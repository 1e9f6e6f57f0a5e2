"""The rows of a profile: what was measured in each cell, and what follows from cells beside each other.

They are plain values, which `profile.json` holds as they are.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import NotRequired, TypedDict

from shoal.profiling.cells import Cell
from shoal.profiling.footprint import Footprint
from shoal.profiling.misses import Missed, growth
from shoal.profiling.rounds import Timing, update_seconds
from shoal.training.clock import UPDATE_ALL_TRAINERS


class PlaceRow(TypedDict):
    """What every row is about."""

    env: str
    agents: int
    implementation: str


class CellRow(PlaceRow):
    """What a row of times is about."""

    algorithm: str
    sampler: str


class TimeRow(CellRow):
    """Time of a round of one cell: medians, their sums, shares of the whole as the papers take it."""

    ring: int
    rounds: int
    cut_short: bool
    others: float | None
    """Share of the processors that other programs used."""
    round_ms: float
    round_ms_low: float
    round_ms_high: float
    update_ms: float
    update_share: float
    update_share_with_environment: float
    phases_ms: dict[str, float]
    parts_ms: dict[str, float]
    shares_of_update: dict[str, float]
    counts: dict[str, dict[str, int]]
    round_joules: NotRequired[float | None]
    """Energy of a round; None without counters."""


class SavingRow(CellRow):
    """What neighbour sampling saves in one cell, as parts of the time with uniform sampling."""

    cut_short: bool
    sampling_ms: float
    uniform_sampling_ms: float
    sampling_reduction: float
    total_reduction: float
    total_reduction_with_environment: float
    total_reduction_by_sampling: float


GrowthRow = TypedDict(
    "GrowthRow",
    {
        "env": str,
        "algorithm": str,
        "implementation": str,
        "sampler": str,
        "agents": str,  # 3 to 6
        "cut_short": bool,
        "round": float,
        "update all trainers": float,
        "action selection": float,
        "mini-batch sampling": float,
        "target Q": float,
        "Q loss": float,
        "P loss": float,
        "target update": float,
    },
)


class MissesRow(PlaceRow, Missed):
    """The cache model's misses in one update of all trainers."""

    sampler: str
    ring: int
    growth: dict[str, float | None] | None
    """How many times those of half the agents, where these were measured, too."""


class MemoryRow(PlaceRow):
    """The footprint of one cell, in bytes; and how often policies are asked in one update."""

    algorithm: str
    ring: int
    replay: int
    networks: int
    update_peak: int
    policy_calls: int
    policy_reads: int


def time_row(timing: Timing) -> TimeRow:
    """The row of one cell."""
    phases, update = timing.phases(), update_seconds(timing.phases())
    whole = sum(phases.values())
    low, _, high = _quartiles(timing.totals())
    return {
        **_place(timing.cell),
        "algorithm": timing.cell.algorithm,
        "sampler": timing.cell.sampler,
        "ring": timing.ring,
        "rounds": len(timing.rounds),
        "cut_short": timing.cut_short,
        "others": timing.others,
        "round_ms": 1e3 * whole,
        "round_ms_low": 1e3 * low,
        "round_ms_high": 1e3 * high,
        "update_ms": 1e3 * update,
        "update_share": update / (whole - phases["environment"]),
        "update_share_with_environment": update / whole,
        "phases_ms": {name: 1e3 * seconds for name, seconds in phases.items()},
        "parts_ms": {name: 1e3 * seconds for name, seconds in timing.seconds().items() if ":" in name},
        "shares_of_update": {name: phases[name] / update for name in UPDATE_ALL_TRAINERS},
        "counts": timing.counts,
        "round_joules": timing.round_joules(),
    }


def misses_row(cell: Cell, ring: int, missed: Missed) -> MissesRow:
    """The row of one cell; its growth is not known yet."""
    return {**_place(cell), "sampler": cell.sampler, "ring": ring, **missed, "growth": None}


def memory_row(cell: Cell, ring: int, taken: Footprint) -> MemoryRow:
    """The row of one cell."""
    return {
        **_place(cell),
        "algorithm": cell.algorithm,
        "ring": ring,
        "replay": taken.replay,
        "networks": taken.networks,
        "update_peak": taken.update_peak,
        "policy_calls": taken.policy_calls,
        "policy_reads": taken.policy_reads,
    }


def _place(cell: Cell) -> PlaceRow:
    return {"env": cell.env, "agents": cell.agents, "implementation": cell.implementation}


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def growth_rows(rows: Iterable[TimeRow]) -> list[GrowthRow]:
    """For each pair of cells of which one has twice the agents: how many times as long each phase takes."""
    by_cell = {(*_key(row), row["sampler"], row["agents"]): row for row in rows}
    found: list[GrowthRow] = []
    for (*rest, agents), row in by_cell.items():
        if (double := by_cell.get((*rest, 2 * agents))) is None:  # type: ignore[arg-type]
            continue
        phases, doubled = row["phases_ms"], double["phases_ms"]
        found.append(
            {
                "env": row["env"],
                "algorithm": row["algorithm"],
                "implementation": row["implementation"],
                "sampler": row["sampler"],
                "agents": f"{agents} to {2 * agents}",
                "cut_short": row["cut_short"] or double["cut_short"],
                "round": double["round_ms"] / row["round_ms"],
                "update all trainers": double["update_ms"] / row["update_ms"],
                "action selection": doubled["action selection"] / phases["action selection"],
                "mini-batch sampling": doubled["mini-batch sampling"] / phases["mini-batch sampling"],
                "target Q": doubled["target Q"] / phases["target Q"],
                "Q loss": doubled["Q loss"] / phases["Q loss"],
                "P loss": doubled["P loss"] / phases["P loss"],
                "target update": doubled["target update"] / phases["target update"],
            }
        )
    return found


def neighbor_rows(rows: Sequence[TimeRow]) -> list[SavingRow]:
    """For each cell with neighbour sampling: how much less time than uniform sampling."""
    uniform = {(*_key(row), row["agents"]): row for row in rows if row["sampler"] == "uniform"}
    found: list[SavingRow] = []
    for row in rows:
        base = uniform.get((*_key(row), row["agents"]))
        if row["sampler"] == "uniform" or base is None:
            continue
        sampling, before = row["phases_ms"]["mini-batch sampling"], base["phases_ms"]["mini-batch sampling"]
        whole, whole_before = (sum(one["phases_ms"].values()) - one["phases_ms"]["environment"] for one in (row, base))
        found.append(
            {
                "env": row["env"],
                "agents": row["agents"],
                "algorithm": row["algorithm"],
                "implementation": row["implementation"],
                "sampler": row["sampler"],
                "cut_short": row["cut_short"] or base["cut_short"],
                "sampling_ms": sampling,
                "uniform_sampling_ms": before,
                "sampling_reduction": 1 - sampling / before,
                "total_reduction": 1 - whole / whole_before,
                "total_reduction_with_environment": 1 - row["round_ms"] / base["round_ms"],
                # what the whole would gain if nothing but the sampling phase had changed: free of the rest's noise
                "total_reduction_by_sampling": (before - sampling) / whole_before,
            }
        )
    return found


def _key(row: TimeRow) -> tuple[str, str, str]:
    return row["env"], row["algorithm"], row["implementation"]


def add_growth(rows: list[MissesRow]) -> None:
    """Beside each row of misses: how many times those of half the agents."""
    by_cell = {(row["env"], row["implementation"], row["sampler"], row["agents"]): row for row in rows}
    for row in rows:
        half = by_cell.get((row["env"], row["implementation"], row["sampler"], row["agents"] // 2))
        even = row["agents"] % 2 == 0 and half is not None
        row["growth"] = growth(half, row) if even and half is not None else None
