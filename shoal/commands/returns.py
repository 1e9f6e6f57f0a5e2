"""Table of returns, after training and evaluation."""

from collections.abc import Mapping

from shoal.console import print_table
from shoal.errors import counted
from shoal.results import Table

Estimates = Mapping[str, tuple[float | None, float | None]]
"""Means and half-widths of their 95 % confidence intervals, by player."""


def print_returns(
    returns: Estimates,
    episodes: int | None,
    env: str = "",
    own: str | None = None,
    figures: Mapping[str, Estimates] | None = None,
) -> None:
    """Trained against random, with intervals; `own` is what the trained team is called.

    `figures` are what the world reports of an episode beside the return, by name.
    """
    labels = {
        "deterministic": own or "trained, most likely actions",
        "noisy": "trained, with training noise",
        "random": "random team",
    }
    rows = [
        {"team": labels[player], "return per agent": mean, "95 % interval": interval(mean, ci)}
        | {name.replace("_", " "): estimate(*figure[player]) for name, figure in (figures or {}).items()}
        for player, (mean, ci) in returns.items()
    ]
    where, each = f" in {env}" if env else "", f", {counted(episodes, 'episode')} each" if episodes else ""
    print_table(Table.of(f"Return of an episode{where}{each}", rows))


def interval(mean: float | None, ci: float | None) -> str:
    """The interval as text; one episode alone has none."""
    return "–" if mean is None or ci is None or ci != ci else f"{mean - ci:,.1f} to {mean + ci:,.1f}"


def estimate(mean: float | None, ci: float | None) -> str:
    """The mean as text, with the half-width of its interval where there is one."""
    if mean is None:
        return "–"
    return f"{mean:,.2f}" if ci is None or ci != ci else f"{mean:,.2f} ± {ci:,.2f}"
