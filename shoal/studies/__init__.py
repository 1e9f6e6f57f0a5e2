"""One file for each figure of the papers: it measures ours, and sets the papers' numbers beside them."""

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from shoal.errors import UserError, check_choice
from shoal.studies.study import Advance, Study

STUDIES = {
    "breakdown": "Figure 2: training time by phase, as the agents grow in number",
    "growth": "Figure 3: how time and cache misses grow when the agents double",
    "inside-update": "Figure 4: the phases inside update all trainers",
    "neighbor-time": "Figure 5: time saved by neighbour sampling",
    "neighbor-reward": "Figure 6: rewards with and without neighbour sampling",
}

__all__ = ["STUDIES", "Study", "run_study", "study_length", "study_of"]


def run_study(name: str, quick: bool, advance: Advance) -> Study:
    """Measure one figure; the quick form ends within two minutes."""
    return study_of(name, _module(name).measured(quick, advance))


def study_of(name: str, found: Mapping[str, Any]) -> Study:
    """The figure made of what was measured before: a profile's or a study's data."""
    module = _module(name)
    try:
        study: Study = module.study(found)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise UserError(f"The study {name} cannot be made of these data: {error!r} is missing or wrong.") from None
    return study


def study_length(name: str, quick: bool) -> float:
    """What the amounts that `advance` is told of add up to."""
    return float(_module(name).length(quick))


def _module(name: str) -> ModuleType:
    check_choice("the study", name, tuple(STUDIES))
    return importlib.import_module(f"shoal.studies.{name.replace('-', '_')}")
