"""Figure 8: bits of the actors' arithmetic (q) by bits of the broadcast (q_c), with frequent and with rare pulls.

int8 actors take the 8-bit codes that they compute with, so their other pairs do not exist and are shown as "–".
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.actorq.broadcast import BROADCAST_BITS
from shoal.results import Column, Panel, Result, Series, Table, Value
from shoal.waiting import Advance
from shoal_papers.cells import StudyCell, total_seconds
from shoal_papers.quarl.actor_runs import factor
from shoal_papers.quarl.throughput import (
    NOT_RUN,
    CellRow,
    Found,
    Measured,
    cell_of,
    energy,
    energy_column,
    network_of,
    of_kind,
    run_cells,
)
from shoal_papers.study import Options, panel_result

TASK = "humanoid"
KINDS = (("torch", "float32"), ("onnx", "float32"), ("onnx", "float16"), ("native", "int8"))
"""Engine and q; PyTorch is the paper's engine."""
PULLS = (30, 300, 1000)
QUICK_BITS = (32, 8, 4)
PAPER_GAIN = 0.30
SMALL = 0.05
"""Changes of the speed below this count as none, and so do those whose interval includes none."""
PAPER = (
    "Paper: quantizing communication gives up to 30 % with a pull every 30 steps, and about nothing where computation "
    "dominates (every 300 or 1000 steps; its caption and its text differ)."
)
MBIT = 1000
"""Of the network that is reckoned with."""


def cells(quick: bool) -> list[StudyCell]:
    """Every pair that exists, the most frequent pulls first."""
    kinds, seconds = (KINDS[::3], 2.0) if quick else (KINDS, 6.0)
    return [
        cell_of(TASK, engine, precision, bits, pull_every, seconds)
        for pull_every in (PULLS[:2] if quick else PULLS)
        for engine, precision in kinds
        for bits in (QUICK_BITS if quick else BROADCAST_BITS)
        if exists(precision, bits)
    ]


def exists(precision: str, bits: int) -> bool:
    """Whether actors of this precision can take a broadcast of so many bits."""
    return precision != "int8" or bits == 8


def length(quick: bool, options: Options) -> float:
    """Approximate seconds."""
    return total_seconds(cells(quick))


def measured(quick: bool, advance: Advance, options: Options) -> Mapping[str, Any]:
    """Run every pair for a few seconds."""
    return run_cells("actorq-communication", quick, options, advance, cells(quick))


def study(found: Found) -> Result:
    """The grids of speed and of bytes, the paper's claim, and a picture."""
    rows = found["rows"]
    name = network_of(TASK)
    tables = [
        grid(f"Environment steps per second of one actor, {name}; columns: bits of the broadcast", rows, _speed),
        grid("Broadcast received, MB per second", rows, lambda row: _of(row, "bytes_per_second", 1e-6)),
    ]
    if energy_column(rows):
        tables.append(grid("Energy per 1000 steps, J", rows, energy))
    findings = [PAPER, *claims(rows), *over_network(rows), *found["failed"]]
    title = "Bits of computation and of communication (Figure 8)"
    return panel_result("actorq-communication", title, tables, findings, panels(rows), {**found})


def _of(row: CellRow, name: str, scale: float = 1.0) -> Value:
    return None if row["measured"] is None else scale * row["measured"][name]  # type: ignore[literal-required]


def _speed(row: CellRow) -> Value:
    return _of(row, "steps_per_second")


def grid(title: str, rows: Sequence[CellRow], value: Any) -> Table:
    """A line per pull frequency and kind of actor, a column per width of the broadcast."""
    widths = list(dict.fromkeys(row["bits"] for row in rows))
    places = dict.fromkeys((row["pull_every"], row["engine"], row["precision"]) for row in rows)
    lines: list[list[Value]] = []
    for pull_every, engine, precision in places:
        own = {row["bits"]: row for row in rows if _place(row) == (pull_every, engine, precision)}
        line = [(value(own[bits]) if own[bits]["measured"] else NOT_RUN) if bits in own else None for bits in widths]
        lines.append([pull_every, precision, engine, *line])
    about = [Column(name) for name in ("pull every", "q", "engine")]
    return Table(title, [*about, *(Column(f"{bits} bits") for bits in widths)], lines)


def _place(row: CellRow) -> tuple[int, str, str]:
    return row["pull_every"], row["engine"], row["precision"]


def claims(rows: Sequence[CellRow]) -> list[str]:
    """What fewer bits of communication give, the actors' arithmetic unchanged, and what int8 gives as a whole."""
    said = []
    for pull_every in dict.fromkeys(row["pull_every"] for row in rows):
        gains = gains_of([row for row in rows if row["pull_every"] == pull_every])
        if gains:
            parts = (f"{bits} bits {mean:.2f} ({low:.2f} to {high:.2f})" for bits, (mean, low, high) in gains.items())
            how = f"A pull every {pull_every} steps, speed over that with 32 bits, mean over kinds of actors"
            said.append(f"{how}: {', '.join(parts)}; {verdict(pull_every, gains)}.")
        full = of_kind(rows, engine="torch", bits=32, pull_every=pull_every)
        eight = of_kind(rows, precision="int8", pull_every=pull_every)
        if full and eight:
            ratio = eight["steps_per_second"] / full["steps_per_second"]
            said.append(
                f"A pull every {pull_every} steps: int8 in both is {ratio:.2f} times PyTorch's float32 in both."
            )
    return said


def gains_of(rows: Sequence[CellRow]) -> dict[int, tuple[float, float, float]]:
    """Speed over that with a 32-bit broadcast to the same actors, by bits: geometric mean over kinds of actors.

    With its 95 % interval: single runs of some seconds differ by chance, so one kind alone says little.
    """
    ratios: dict[int, list[float]] = {}
    for row in rows:
        full = of_kind(rows, engine=row["engine"], precision=row["precision"], bits=32)
        if row["measured"] and full and row["bits"] < 32:
            ratios.setdefault(row["bits"], []).append(row["measured"]["steps_per_second"] / full["steps_per_second"])
    return {bits: found for bits, own in ratios.items() if (found := factor(own)) is not None}


def verdict(pull_every: int, gains: Mapping[int, tuple[float, float, float]]) -> str:
    """Whether the paper's claim for this pull frequency holds here."""
    if pull_every == PULLS[0]:
        if max(mean for mean, _, _ in gains.values()) >= 1 + PAPER_GAIN:
            return "the paper's 30 % hold"
        gained = any(low > 1 and mean >= 1 + SMALL for mean, low, _ in gains.values())
        return "a gain, but less than the paper's 30 %" if gained else "the paper's gain does not hold here"
    nothing = all(low <= 1 <= high or abs(mean - 1) < SMALL for mean, low, high in gains.values())
    return "the paper's “about nothing” holds" if nothing else "the paper's “about nothing” does not hold here"


def over_network(rows: Sequence[CellRow]) -> list[str]:
    """What a network would change, by arithmetic: the bytes of a pull at the network's rate on top of the time here."""
    pull_every = min(row["pull_every"] for row in rows)
    said = []
    for bits, precision in ((32, "float32"), (8, "float32"), (8, "int8")):
        if one := of_kind(rows, bits=bits, precision=precision, pull_every=pull_every):
            milliseconds = 1e3 * transfer_seconds(one)
            speed = 1 / (1 / one["steps_per_second"] + milliseconds / 1e3 / pull_every)
            said.append(f"{milliseconds:.0f} ms and leave {speed:,.0f} steps/s ({precision}, {bits} bits)")
    if not said:
        return []
    return [
        "In shared memory a pull is one copy, so its bytes cost little. Over a network of "
        f"{MBIT / 1000:g} Gbit/s for one actor alone (arithmetic, not measured), with a pull every {pull_every} steps, "
        f"a pull would take {'; '.join(said)}."
    ]


def transfer_seconds(one: Measured) -> float:
    """Of one pull over the network."""
    return 8 * one["bytes_per_pull"] / (1e6 * MBIT)


def panels(rows: Sequence[CellRow]) -> list[Panel]:
    """Bars of speed over bits of the broadcast; one panel per pull frequency."""
    widths = list(dict.fromkeys(row["bits"] for row in rows))
    found = []
    for pull_every in dict.fromkeys(row["pull_every"] for row in rows):
        own = [row for row in rows if row["pull_every"] == pull_every]
        series = []
        for engine, precision in dict.fromkeys((row["engine"], row["precision"]) for row in own):
            ran = [of_kind(own, engine=engine, precision=precision, bits=bits) for bits in widths]
            speeds = [one["steps_per_second"] if one else None for one in ran]
            series.append(Series(f"{precision} in {engine}", speeds, "bars"))
        ticks = list(map(str, widths))
        found.append(Panel(f"a pull every {pull_every} steps", "environment steps/s", series, "broadcast bits", ticks))
    return found
