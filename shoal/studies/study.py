"""What a study comes to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Advance = Callable[[float, str], None]
"""Told how much more is done, of the whole length, and what is being done."""
Picture = Literal["shares", "growth", "inside-update", "neighbor", "rewards"]


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
