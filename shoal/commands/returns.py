"""Tables of returns, after training and evaluation."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.console import print_table
from shoal.errors import counted
from shoal.results import Table

if TYPE_CHECKING:
    from shoal.training.result import Figures

MOST_AGENTS = 12
"""A larger team's returns are shown by group only; --json has those of all agents."""


def print_returns(
    returns: Mapping[str, tuple[float, float | None]],
    episodes: int | None,
    env: str = "",
    own: str | None = None,
    fields: "Mapping[str, Figures] | None" = None,
) -> None:
    """Trained against random, with intervals; `own` is what the trained team is called.

    `fields` are the returns by agent and by group and the world's figures, by player; a table by group follows where
    there are several.
    """
    labels = {
        "deterministic": own or "trained, most likely actions",
        "noisy": "trained, with training noise",
        "random": "random team",
    }
    fields = fields or {"agents": {}, "groups": {}, "figures": {}}
    rows = [
        {"team": labels[player], "return per agent": mean, "95 % interval": interval(mean, ci)}
        | {name.replace("_", " "): estimate(values, player) for name, values in fields["figures"].items()}
        for player, (mean, ci) in returns.items()
    ]
    where, each = f" in {env}" if env else "", f", {counted(episodes, 'episode')} each" if episodes else ""
    print_table(Table.of(f"Return of an episode{where}{each}", rows))
    if len(fields["groups"]) > 1:
        sides = {f"group {name}": values for name, values in fields["groups"].items()}
        sides |= fields["agents"] if len(fields["agents"]) <= MOST_AGENTS else {}
        by_side = [
            {"return per agent of": name} | {labels[player]: estimate(values, player) for player in returns}
            for name, values in sides.items()
        ]
        print_table(Table.of("Return of an episode by group and agent, ± half of the 95 % interval", by_side))


def interval(mean: float, ci: float | None) -> str:
    """The interval as text; one episode alone has none."""
    return "–" if ci is None or ci != ci else f"{mean - ci:,.1f} to {mean + ci:,.1f}"


def estimate(values: Mapping[str, float | None], player: str) -> str:
    """A player's mean as text, with the half-width of its interval where there is one."""
    mean, ci = values[player], values[f"{player}_ci95"]
    if mean is None:
        return "–"
    return f"{mean:,.2f}" if ci is None or ci != ci else f"{mean:,.2f} ± {ci:,.2f}"
