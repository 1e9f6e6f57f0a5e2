"""Tables of returns, after training and evaluation."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.commands.console import print_table
from shoal.errors import counted
from shoal.results import ADVICE, Column, Table, estimate_text
from shoal.runs.folder import METRICS
from shoal.system.streams import put

if TYPE_CHECKING:
    from shoal.training.result import ByPlayer

MOST_AGENTS = 12  # a larger team's returns are not shown by agent; --json has all of them
OVERLAP = "The 95 % intervals of the trained and the random team overlap"


def print_returns(
    returns: Mapping[str, tuple[float, float | None]],
    episodes: int | None,
    env: str = "",
    trained_name: str | None = None,
    fields: "Mapping[str, ByPlayer] | None" = None,
    trained: bool = True,
    controllers: "ByPlayer | None" = None,
) -> None:
    """Trained against random and the world's controllers, with intervals, and a sentence that compares them.

    `trained_name`: what to call the trained team. `controllers`: for each, the share of the way from random to it.

    `fields` are the returns by agent and by group and the world's metrics, by player; a table of them follows where
    there are several groups, or agents with different returns.
    """
    state = "trained" if trained else "untrained"
    labels = {
        "deterministic": trained_name or f"{state}, most likely actions",
        "noisy": f"{state}, with training noise",
        "random": "random team",
    }
    fields = fields or {"agents": {}, "groups": {}, "figures": {}}
    groups = [values[player] or 0.0 for values in fields["groups"].values() for player in returns]
    digits = 2 if max(map(abs, [*(mean for mean, _ in returns.values()), *groups])) >= 1 else 4
    column = Column("return per agent", format=f"z,.{digits}f")
    rows: list[Mapping[Any, Any]] = [
        {"team": labels.get(player, spoken(player)), column: mean, "95 % interval": interval(mean, ci, digits)}
        | {name.replace("_", " "): estimate(values, player) for name, values in fields["figures"].items()}
        for player, (mean, ci) in returns.items()
    ]
    where, each = f" in {env}" if env else "", f", {counted(episodes, 'episode')} each" if episodes else ""
    print_table(Table.of(f"Return of an episode{where}{each}", rows))
    mixed = len(fields["groups"]) > 1
    sides = {f"group {name}": values for name, values in fields["groups"].items()} if mixed else {}
    agents = fields["agents"] if len(fields["agents"]) <= MOST_AGENTS else {}
    players = [player for player in returns if player in labels]
    if mixed or len({tuple(values[player] for player in players) for values in agents.values()}) > 1:
        sides |= agents
    if sides:
        by_side = [
            {"return per agent of": name} | {labels[player]: estimate(values, player, digits) for player in players}
            for name, values in sides.items()
        ]
        by = " and ".join(["group"] * mixed + ["agent"] * bool(agents))
        print_table(Table.of(f"Return of an episode by {by}, ± half of the 95 % interval", by_side))
    shares = {spoken(name): own["share"] or 0.0 for name, own in (controllers or {}).items()}
    gone = [f"{share:.0%} of the way from random to {name}" for name, share in shares.items() if share > 0]
    if trained and (sentence := no_better(returns, fields["groups"])):
        put(sentence)
    elif trained and gone:
        put(f"The team is {', '.join(gone)}.")


def run_symptom(run: Path) -> str | None:
    """The problem that a run's log shows; None if there is none, or no log."""
    from shoal.report.symptoms import symptom

    return symptom(run / METRICS) if (run / METRICS).is_file() else None


def print_symptom(sentence: str | None) -> None:
    """Print it, and where to read more."""
    if sentence:
        put(f"{sentence} See “Problems that the log shows” in docs/advice.md.")


def spoken(controller: str) -> str:
    """A controller's name in a sentence."""
    return controller.replace("_", " ")


def no_better(returns: Mapping[str, tuple[float, float | None]], groups: "ByPlayer") -> str:
    """A sentence if the trained team is not clearly better than the random one, else nothing.

    Where groups play against each other, a trained one may well do no better against a trained opponent than a random
    one against a random opponent: there is a sentence only if the intervals of every group overlap.
    """
    trained, other = next(iter(returns)), "random"  # most likely actions first
    if len(groups) > 1:
        sides = ([(side[name], side[f"{name}_ci95"]) for name in (trained, other)] for side in groups.values())
        return f"{OVERLAP} in every group: {ADVICE}" if all(_gap(*side) == 0 for side in sides) else ""
    gap = _gap(returns[trained], returns[other])
    if gap == 0:
        return f"{OVERLAP}: {ADVICE}"
    return f"The trained team does worse than the random one: {ADVICE}" if gap < 0 else ""


def _gap(trained: tuple[float | None, float | None], other: tuple[float | None, float | None]) -> float:
    """How far a mean lies above another; 0 if their intervals overlap, NaN if one is not known."""
    mean, half, other_mean, other_half = (math.nan if value is None else value for value in (*trained, *other))
    apart = abs(mean - other_mean) - (half + other_half)
    return math.nan if math.isnan(apart) else 0.0 if apart <= 0 else mean - other_mean


def interval(mean: float, ci: float | None, digits: int) -> str:
    """The interval as text; one episode alone has none."""
    return "–" if ci is None or ci != ci else f"{mean - ci:z,.{digits}f} to {mean + ci:z,.{digits}f}"


def estimate(values: Mapping[str, float | None], player: str, digits: int = 2) -> str:
    """A player's mean as text, with the half-width of its interval where there is one."""
    return estimate_text(values[player], values[f"{player}_ci95"], digits)
