"""Tables of returns, after training and evaluation."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shoal.console import print_table
from shoal.errors import counted
from shoal.results import Column, Table

if TYPE_CHECKING:
    from shoal.training.result import Figures

MOST_AGENTS = 12
"""A larger team's returns are not shown by agent; --json has all of them."""


def print_returns(
    returns: Mapping[str, tuple[float, float | None]],
    episodes: int | None,
    env: str = "",
    own: str | None = None,
    fields: "Mapping[str, Figures] | None" = None,
) -> None:
    """Trained against random, with intervals; `own` is what the trained team is called.

    `fields` are the returns by agent and by group and the world's figures, by player; a table of them follows where
    there are several groups, or agents with different returns.
    """
    labels = {
        "deterministic": own or "trained, most likely actions",
        "noisy": "trained, with training noise",
        "random": "random team",
    }
    fields = fields or {"agents": {}, "groups": {}, "figures": {}}
    groups = [values[player] or 0.0 for values in fields["groups"].values() for player in returns]
    digits = 2 if max(map(abs, [*(mean for mean, _ in returns.values()), *groups])) >= 1 else 4
    column = Column("return per agent", format=f"z,.{digits}f")
    rows: list[Mapping[Any, Any]] = [
        {"team": labels[player], column: mean, "95 % interval": interval(mean, ci, digits)}
        | {name.replace("_", " "): estimate(values, player) for name, values in fields["figures"].items()}
        for player, (mean, ci) in returns.items()
    ]
    where, each = f" in {env}" if env else "", f", {counted(episodes, 'episode')} each" if episodes else ""
    print_table(Table.of(f"Return of an episode{where}{each}", rows))
    mixed = len(fields["groups"]) > 1
    sides = {f"group {name}": values for name, values in fields["groups"].items()} if mixed else {}
    agents = fields["agents"] if len(fields["agents"]) <= MOST_AGENTS else {}
    if mixed or len({tuple(values[player] for player in returns) for values in agents.values()}) > 1:
        sides |= agents
    if sides:
        by_side = [
            {"return per agent of": name} | {labels[player]: estimate(values, player, digits) for player in returns}
            for name, values in sides.items()
        ]
        by = " and ".join(["group"] * mixed + ["agent"] * bool(agents))
        print_table(Table.of(f"Return of an episode by {by}, ± half of the 95 % interval", by_side))


def interval(mean: float, ci: float | None, digits: int) -> str:
    """The interval as text; one episode alone has none."""
    return "–" if ci is None or ci != ci else f"{mean - ci:z,.{digits}f} to {mean + ci:z,.{digits}f}"


def estimate(values: Mapping[str, float | None], player: str, digits: int = 2) -> str:
    """A player's mean as text, with the half-width of its interval where there is one."""
    mean, ci = values[player], values[f"{player}_ci95"]
    if mean is None:
        return "–"
    text = f"{mean:z,.{digits}f}"
    return text if ci is None or ci != ci else f"{text} ± {ci:,.{digits}f}"
