"""What a study is told, and the result of one with a single figure."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.results import Figure, Panel, Result, Table

Advance = Callable[[float, str], None]
"""Told how much more is done, of the whole length, and what is being done."""


@dataclass(frozen=True)
class Options:
    """What a person can say to a study that is made of cells."""

    folder: Path = Path("studies")
    """Where finished cells and trained models are kept."""
    budget: float = 60.0
    """Minutes after which no more cells are begun."""
    model: str = ""
    """A zip of Stable-Baselines3 to be measured instead of models that the study trains."""
    env: str = ""
    """The environment of that model."""
    normaliser: str = ""
    """Its observation normaliser."""
    trust: bool = False
    """Let its own library load it and run the code that is in it."""


def panel_result(
    name: str,
    title: str,
    tables: list[Table],
    findings: list[str],
    panels: list[Panel],
    found: Mapping[str, object],
) -> Result:
    """A study whose one figure is these panels; its data hold them, too."""
    data = {**found, "panels": [asdict(panel) for panel in panels]}
    return Result(name, title, tables, findings, [Figure(name, title, panels)], data)
