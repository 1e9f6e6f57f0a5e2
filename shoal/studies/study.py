"""What a study is told, and what it comes to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Advance = Callable[[float, str], None]
"""Told how much more is done, of the whole length, and what is being done."""
Picture = Literal["shares", "growth", "inside-update", "neighbor", "rewards", "panels"]


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


@dataclass(frozen=True)
class Study:
    """Tables for people, sentences on what holds, and the data a picture is drawn from."""

    name: str
    title: str
    tables: list[tuple[str, list[dict[str, Any]]]]
    findings: list[str]
    """Plain sentences: the papers' number, ours, and whether the claim holds."""
    picture: Picture
    data: dict[str, Any] = field(default_factory=dict)
