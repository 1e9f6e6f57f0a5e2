"""One module per figure of the papers: it measures Shoal and compares with the papers' numbers."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.errors import UserError, check_choice
from shoal.results import Result
from shoal.waiting import Advance
from shoal_papers.study import Options

STUDIES = {
    "breakdown": "Figure 2: training time by phase, by number of agents",
    "growth": "Figure 3: growth of time and cache misses when the number of agents doubles",
    "inside-update": "Figure 4: the phases inside update all trainers",
    "neighbor-time": "Figure 5: time saved by neighbour sampling",
    "neighbor-reward": "Figure 6: rewards with and without neighbour sampling",
    "ptq-table": "QuaRL, Table 1: Stable-Baselines3 models in fp16 and int8",
    "weight-bits": "QuaRL, Figure 2: low-precision weights",
    "qat": "QuaRL, Figure 4: quantization-aware training against post-training quantization; and teams",
    "edge": "QuaRL, Table 2 and Figure 3: policies on a small device",
    "actorq-breakdown": "QuaRL, Figure 9: where an actor's time goes with 32, 16 and 8 bits",
    "actorq-communication": "QuaRL, Figure 8: bits of the actors' arithmetic by bits of the broadcast",
    "actorq-model": "QuaRL, Table 4 and beyond: a simulation of quantized actors, checked against real runs",
    "actorq-speed": "QuaRL, Tables 3 and 4, Figures 5 and 6: time to 95 % of the best score with quantized actors",
    "actorq-staleness": "QuaRL, Figure 7: returns with infrequent pulls of the policy",
    "actorq-teams": "Teams of 3 and 12 agents with quantized actors",
    "schemes": "MAC units: six published training schemes, their accuracies beside ours",
    "mac-formats": "MAC units, claims (a) and (b): multiplier formats with and without loss scaling",
    "mac-configs": "MAC units, claim (c): the multiplier's configurations CFG-1 to CFG-6",
    "mac-accumulators": "MAC units, claims (d) and (e): float accumulators by exponent and mantissa, fixed ones Q8.f",
    "mac-full": "MAC units, claims (f) and (g): whole units on a small and on a wide model",
    "mac-updates": "MAC units: master weights and optimizer state in low precision",
    "mac-orders": "MAC units: orders of accumulation for narrow accumulators",
    "mac-layers": "MAC units: normalisation and activation functions in low precision",
    "mac-error": "MAC units: a unit for each layer, chosen by error analysis, against one for all",
    "mac-other-formats": "MAC units: block formats and eight exponent bits",
    "mac-teams": "MAC units: a team trained through them, and what breaks first",
    "frameworks": "MAC units: the slides' table of frameworks with a row for Shoal",
}
OF_CELLS = (
    "ptq-table", "weight-bits", "qat", "edge", "actorq-breakdown", "actorq-communication", "actorq-model",
    "actorq-speed", "actorq-staleness", "actorq-teams", "schemes", "mac-formats", "mac-configs", "mac-accumulators",
    "mac-full", "mac-updates", "mac-orders", "mac-layers", "mac-error", "mac-other-formats", "mac-teams",
)  # fmt: skip
"""Studies that consist of cells, keep finished ones and have a budget."""

__all__ = ["OF_CELLS", "Options", "STUDIES", "check_options", "run_study", "study_length", "study_of"]


def check_options(name: str, options: Options) -> None:
    """Refuse an unknown study, and options that do not apply to it, before its module imports torch."""
    check_choice("The study", name, tuple(STUDIES))
    _told(name, options)
    if options.model and not Path(options.model).is_file():
        raise UserError(f"--model '{options.model}' cannot be read: there is no such file.")


def run_study(name: str, quick: bool, advance: Advance, options: Options | None = None) -> Result:
    """Run one study; the quick form takes at most two minutes."""
    return study_of(name, _module(name).measured(quick, advance, *_told(name, options)))


def study_of(name: str, found: Mapping[str, Any]) -> Result:
    """The study's result from data measured before by a profile or a study."""
    module = _module(name)
    try:
        study: Result = module.study(found)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise UserError(
            f"The study {name} cannot be made from these data, which are those of something else ({error})."
        ) from None
    return study


def study_length(name: str, quick: bool, options: Options | None = None) -> float:
    """The total of the amounts passed to `advance`."""
    return float(_module(name).length(quick, *_told(name, options)))


def _told(name: str, options: Options | None) -> tuple[Options, ...]:
    """The options, for a study that takes some; only ptq-table takes a model."""
    options = options or Options()
    if options.model and name != "ptq-table":
        raise UserError(f"--model is for the study ptq-table, but the study is {name}.")
    if options.model and not options.env:
        raise UserError("--env is missing: the zip does not say which environment its model plays.")
    if not options.model and (options.env or options.normaliser or options.trust):
        raise UserError("--env, --normaliser and --trust are for a --model.")
    if options.cells and name not in OF_CELLS:
        raise UserError(f"--cells is for studies that consist of cells, but {name} does not: {', '.join(OF_CELLS)} do.")
    return (options,) if name in OF_CELLS else ()


def _paper(name: str) -> str:
    """The package with the studies of the same paper."""
    if name in ("breakdown", "growth", "inside-update", "neighbor-time", "neighbor-reward"):
        return "marl"
    return "mac" if name.startswith("mac-") or name in ("schemes", "frameworks") else "quarl"


def _module(name: str) -> ModuleType:
    check_choice("The study", name, tuple(STUDIES))
    return importlib.import_module(f"shoal_papers.{_paper(name)}.{name.removeprefix('mac-').replace('-', '_')}")
