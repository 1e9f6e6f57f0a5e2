"""Table of returns, after training and evaluation."""

from collections.abc import Mapping

from shoal.console import print_table
from shoal.errors import counted
from shoal.results import Table


def print_returns(
    teams: Mapping[str, tuple[float, float | None]], episodes: int | None, env: str = "", own: str | None = None
) -> None:
    """Trained against random, with intervals; `own` is what the trained team is called."""
    labels = {
        "deterministic": own or "trained, most likely actions",
        "noisy": "trained, with training noise",
        "random": "random team",
    }
    rows = [
        {"team": labels[name], "return per agent": mean, "95 % interval": interval(mean, ci)}
        for name, (mean, ci) in teams.items()
    ]
    where, each = f" in {env}" if env else "", f", {counted(episodes, 'episode')} each" if episodes else ""
    print_table(Table.of(f"Return of an episode{where}{each}", rows))


def interval(mean: float, ci: float | None) -> str:
    """The interval as text; one episode alone has none."""
    return "–" if ci is None or ci != ci else f"{mean - ci:,.1f} to {mean + ci:,.1f}"
