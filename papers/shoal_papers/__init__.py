"""The tables and figures of the papers: each study measures Shoal and compares with the papers' numbers."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import UserError, check_choice
from shoal.results import Result
from shoal.waiting import Advance
from shoal_papers.cells import Options
from shoal_papers.study import Study

MODULES = {
    "marl.times": {
        "breakdown": "Figure 2: training time by phase, by number of agents",
        "growth": "Figure 3: growth of time and cache misses when the number of agents doubles",
        "inside-update": "Figure 4: the phases inside update all trainers",
        "neighbor-time": "Figure 5: time saved by neighbour sampling",
    },
    "marl.neighbor_reward": {"neighbor-reward": "Figure 6: rewards with and without neighbour sampling"},
    "marl.returns": {"returns": "Beyond the papers: our teams beside published returns and BenchMARL's"},
    "quarl.ptq_table": {"ptq-table": "QuaRL, Table 1: Stable-Baselines3 models in fp16 and int8"},
    "quarl.weight_bits": {"weight-bits": "QuaRL, Figure 2: low-precision weights"},
    "quarl.qat": {"qat": "QuaRL, Figure 4: quantization-aware training against post-training quantization; and teams"},
    "quarl.edge": {"edge": "QuaRL, Table 2 and Figure 3: policies on a small device"},
    "quarl.throughput": {
        "actorq-breakdown": "QuaRL, Figure 9: where an actor's time goes with 32, 16 and 8 bits",
        "actorq-communication": "QuaRL, Figure 8: bits of the actors' arithmetic by bits of the broadcast",
    },
    "quarl.actorq_model": {
        "actorq-model": "QuaRL, Table 4 and beyond: a simulation of quantized actors, checked against real runs"
    },
    "quarl.actorq_speed": {
        "actorq-speed": "QuaRL, Tables 3 and 4, Figures 5 and 6: time to 95 % of the best score with quantized actors"
    },
    "quarl.actorq_staleness": {"actorq-staleness": "QuaRL, Figure 7: returns with infrequent pulls of the policy"},
    "quarl.actorq_teams": {"actorq-teams": "Teams of 3 and 12 agents with quantized actors"},
    "mac.schemes": {"schemes": "MAC units: six published training schemes, their accuracies beside ours"},
    "mac.units": {
        "mac-formats": "MAC units, claims (a) and (b): multiplier formats with and without loss scaling",
        "mac-configs": "MAC units, claim (c): the multiplier's configurations CFG-1 to CFG-6",
        "mac-accumulators": "MAC units, claims (d) and (e): float accumulators by exponent and mantissa, fixed ones "
        "Q8.f",
        "mac-full": "MAC units, claims (f) and (g): whole units on a small and on a wide model",
    },
    "mac.open_questions": {
        "mac-updates": "MAC units: master weights and optimizer state in low precision",
        "mac-orders": "MAC units: orders of accumulation for narrow accumulators",
        "mac-layers": "MAC units: normalisation and activation functions in low precision",
        "mac-other-formats": "MAC units: block formats and eight exponent bits",
    },
    "mac.error": {"mac-error": "MAC units: a unit for each layer, chosen by error analysis, against one for all"},
    "mac.teams": {"mac-teams": "MAC units: a team trained through them, and what breaks first"},
    "mac.frameworks": {"frameworks": "MAC units: the slides' table of frameworks with a row for Shoal"},
}
"""The studies of each module, with what they redraw: known before the module, which may import torch."""
STUDIES = {name: title for studies in MODULES.values() for name, title in studies.items()}
OF_CELLS = tuple(name for name in STUDIES if name not in MODULES["marl.times"] and name != "frameworks")
"""Studies that consist of cells, keep finished ones and have a budget."""

__all__ = ["OF_CELLS", "Options", "STUDIES", "check_options", "run_study", "study_length", "study_of"]


def check_options(name: str, options: Options) -> None:
    """Refuse an unknown study, and options that do not apply to it."""
    check_choice("The study", name, tuple(STUDIES))
    if options.model and name != "ptq-table":
        raise UserError(f"`model` is for the study ptq-table, but the study is {name}.")
    if options.model and not options.env:
        raise UserError("`env` is missing: the zip does not say which environment its model plays.")
    if not options.model and (options.env or options.normaliser or options.trust):
        raise UserError("`env`, `normaliser` and `trust` are for a `model`.")
    if options.cells and name not in OF_CELLS:
        raise UserError(f"`cells` is for studies that consist of cells, but {name} does not: {', '.join(OF_CELLS)} do.")
    if options.model and not Path(options.model).is_file():
        raise UserError(f"`model` '{options.model}' cannot be read: there is no such file.")


def run_study(name: str, quick: bool, advance: Advance, options: Options | None = None) -> Result:
    """Run one study; the quick form takes at most two minutes."""
    options = options or Options()
    check_options(name, options)
    return _study(name).run(quick, advance, options)


def study_of(name: str, data: Mapping[str, Any]) -> Result:
    """The study's result from data measured before by a profile or a study."""
    check_choice("The study", name, tuple(STUDIES))
    try:
        return _study(name).result(data)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise UserError(
            f"The study {name} cannot be made from these data, which are those of something else ({error})."
        ) from None


def study_length(name: str, quick: bool, options: Options | None = None) -> float:
    """The total of the amounts passed to `advance`."""
    return _study(name).length(quick, options or Options())


def _study(name: str) -> Study:
    (module,) = (module for module, studies in MODULES.items() if name in studies)
    importlib.import_module(f"shoal_papers.{module}")
    return Study.named[name]
