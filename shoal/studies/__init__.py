"""One file for each figure of the papers: it measures ours, and sets the papers' numbers beside them."""

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from shoal.errors import UserError, check_choice
from shoal.results import Result
from shoal.studies.study import Advance, Options

STUDIES = {
    "breakdown": "Figure 2: training time by phase, as the agents grow in number",
    "growth": "Figure 3: how time and cache misses grow when the agents double",
    "inside-update": "Figure 4: the phases inside update all trainers",
    "neighbor-time": "Figure 5: time saved by neighbour sampling",
    "neighbor-reward": "Figure 6: rewards with and without neighbour sampling",
    "ptq-table": "QuaRL, Table 1: models of Stable-Baselines3 in fp16 and int8",
    "weight-bits": "QuaRL, Figure 2: weights alone in few bits",
    "qat": "QuaRL, Figure 4: trained for few bits against rounded to them; and teams",
    "edge": "QuaRL, Table 2 and Figure 3: policies on a small device",
}
OF_CELLS = ("ptq-table", "weight-bits", "qat", "edge")
"""Studies that keep finished cells and have a budget."""

__all__ = ["OF_CELLS", "Options", "STUDIES", "run_study", "study_length", "study_of"]


def run_study(name: str, quick: bool, advance: Advance, options: Options | None = None) -> Result:
    """Measure one figure; the quick form ends within two minutes."""
    return study_of(name, _module(name).measured(quick, advance, *_told(name, options)))


def study_of(name: str, found: Mapping[str, Any]) -> Result:
    """The figure made of what was measured before: a profile's or a study's data."""
    module = _module(name)
    try:
        study: Result = module.study(found)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise UserError(f"The study {name} cannot be made of these data: {error!r} is missing or wrong.") from None
    return study


def study_length(name: str, quick: bool, options: Options | None = None) -> float:
    """What the amounts that `advance` is told of add up to."""
    return float(_module(name).length(quick, *_told(name, options)))


def _told(name: str, options: Options | None) -> tuple[Options, ...]:
    """The options, for a study that takes some; with a model only for the one study that takes that."""
    options = options or Options()
    if options.model and name != "ptq-table":
        raise UserError(f"--model is for the study ptq-table, but the study is {name}.")
    if options.model and not options.env:
        raise UserError("--env is missing: which environment the model plays is not in its zip.")
    if not options.model and (options.env or options.normaliser or options.trust):
        raise UserError("--env, --normaliser and --trust are for a --model.")
    return (options,) if name in OF_CELLS else ()


def _module(name: str) -> ModuleType:
    check_choice("the study", name, tuple(STUDIES))
    return importlib.import_module(f"shoal.studies.{name.replace('-', '_')}")
