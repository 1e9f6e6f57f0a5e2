"""The options of a study, and the result of one with a single figure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.results import Figure, Panel, Result, Table


@dataclass(frozen=True)
class Options:
    """The user's options for a study that consists of cells."""

    folder: Path = Path("runs/studies")
    """Folder for trained models and, unless `cells` names another, finished cells."""
    budget: float = 60.0
    """Minutes after which no more cells are started."""
    model: str = ""
    """A Stable-Baselines3 zip to measure instead of models that the study trains."""
    env: str = ""
    """The environment of that model."""
    normaliser: str = ""
    """Its observation normaliser."""
    trust: bool = False
    """Load it with its own library, which runs the code in it."""
    cells: Path | None = None
    """Folder for finished cells; None: "cells" in `folder`."""


def panel_result(
    name: str,
    title: str,
    tables: list[Table],
    findings: list[str],
    panels: list[Panel],
    found: Mapping[str, object],
) -> Result:
    """The result of a study with a single figure of these panels; its data include them."""
    data = {**found, "panels": [asdict(panel) for panel in panels]}
    return Result(name, title, tables, findings, [Figure(name, title, panels)], data)
