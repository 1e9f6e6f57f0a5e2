"""Table 1: post-training quantization to fp16 and int8 costs 2 to 5 % of the reward on average, the paper says.

Its own cells say 2.5 % (fp16) and 7.5 % (int8). Weights and the inputs of layers are quantized: once with the paper's
formula, one scale per layer, and once with one scale per output channel, clamped, as integers are really stored. Both
again with their biases corrected, and with weights rounded by output error as well.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import UserError, counted
from shoal.inference.correction import BIAS, NOTHING, Correction
from shoal.policies.baselines_model import read_zip
from shoal.policies.normaliser import read_normaliser
from shoal.policies.quantize import WidthRecord, WidthSweep, sweep
from shoal.policies.stable_baselines import BaselinesPolicy
from shoal.quantization.quantizer import Quantizer, Width
from shoal.results import Column, Panel, Series, Table, Value
from shoal.runs import disk
from shoal_papers.cells import Options, StudyCell
from shoal_papers.quarl import baselines, recipes

PAPER: dict[str, dict[str, tuple[float, float, float]]] = {  # fp32, fp16, int8
    "Breakout": {"a2c": (379, 371, 350), "dqn": (214, 217, 78), "ppo": (400, 400, 368)},
    "SpaceInvaders": {"a2c": (717, 667, 634), "dqn": (586, 625, 509), "ppo": (698, 662, 684)},
    "BeamRider": {"a2c": (3087, 3060, 2793), "dqn": (925, 823, 721), "ppo": (1655, 1820, 1697)},
    "MsPacman": {"a2c": (1915, 1915, 2045), "dqn": (1433, 1429, 2024), "ppo": (1735, 1735, 1845)},
    "Qbert": {"a2c": (5002, 5002, 5611), "dqn": (641, 641, 616), "ppo": (15010, 15010, 14425)},
    "Seaquest": {"a2c": (782, 756, 753), "dqn": (1709, 1885, 1582), "ppo": (1782, 1784, 1795)},
    "CartPole": {"a2c": (500, 500, 500), "dqn": (500, 500, 500), "ppo": (500, 500, 500)},
    "Pong": {"a2c": (20, 20, 19), "dqn": (21, 21, 21), "ppo": (20, 20, 20)},
    "Walker2D": {"a2c": (399, 422, 442), "ppo": (2274, 2273, 2268), "ddpg": (1890, 1929, 1866)},
    "HalfCheetah": {"a2c": (2199, 2215, 2208), "ppo": (3026, 3062, 3080), "ddpg": (2553, 2551, 2473)},
    "BipedalWalker": {"a2c": (230, 240, 226), "ppo": (304, 280, 291), "ddpg": (98, 90, 83)},
    "MountainCar": {"a2c": (94, 94, 94), "ppo": (92, 92, 92), "ddpg": (92, 92, 92)},
}
NAMES = {"MountainCarContinuous": "MountainCar", "Walker2d": "Walker2D"}
"""Gymnasium's names of the paper's environments, where they differ."""
FP16, INT8, CHANNELS = "fp16", "int8 (paper)", "int8 (per channel)"
WIDTHS = (
    Width(FP16, Quantizer(format="fp16")),
    Width(INT8, Quantizer(8, "paper")),
    Width(CHANNELS, Quantizer(8, per_channel=True)),
)
CORRECTIONS = {"bias": BIAS, "rounding": Correction(rounding="output-error")}
"""By name; with the rounding, biases are corrected as well."""
VARIANTS: dict[str, tuple[str, Correction]] = {
    FP16: (FP16, NOTHING),
    INT8: (INT8, NOTHING),
    "paper, bias": (INT8, BIAS),
    "paper, rounding": (INT8, CORRECTIONS["rounding"]),
    CHANNELS: (CHANNELS, NOTHING),
    "per channel, bias": (CHANNELS, BIAS),
    "per channel, rounding": (CHANNELS, CORRECTIONS["rounding"]),
}
"""What is compared with float32: the precision and what is corrected, by the name of its column."""
QUICK = (("ppo", "CartPole-v1", 20_000), ("dqn", "CartPole-v1", 20_000), ("a2c", "MountainCarContinuous-v0", 20_000))
"""Algorithm, environment and steps of the quick form."""
EPISODES, QUICK_EPISODES = 100, 20
NEAR = 0.05  # a return counts as near full precision's if it is at most this fraction of |full| below it


def corrections(quick: bool) -> dict[str, list[str]]:
    """The setting of a cell that names what is corrected; rounding a large model by output error takes too long."""
    return {"corrections": ["bias"] if quick else [*CORRECTIONS]}


def _checksum(option: str, path: Path) -> str:
    try:
        return disk.sha256(path.read_bytes())
    except OSError as error:
        raise UserError(f"{option} '{path}' cannot be read: {error.strerror or error}.") from None


def measure_model(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: one model in every precision."""
    if "model" in settings:
        trust, normaliser = settings["trust"], settings["normaliser"]
        model = read_zip(settings["model"], trust, read_normaliser(Path(normaliser), trust) if normaliser else None)
        policy, algorithm = BaselinesPolicy(model, {"env": settings["env"]}), model.algorithm
    else:
        algorithm = settings["algorithm"]
        policy = baselines.trained_model(algorithm, settings["env"], settings["seed"], settings["steps"], folder)
    corrections = tuple(CORRECTIONS[name] for name in settings["corrections"])
    swept = sweep(policy, WidthSweep(WIDTHS, ("both",), episodes=settings["episodes"], corrections=corrections))
    return {
        "algorithm": algorithm,
        "env": settings["env"],
        "steps": settings.get("steps"),
        "episodes": settings["episodes"],
        "precisions": swept.to_dict()["rows"],
    }


Model = Mapping[str, Any]  # a model in every precision: what `measure_model` returns, and the cell's name


class PtqTable(baselines.ModelStudy, name="ptq-table"):
    """Every model in every precision, compared with the paper."""

    title = "Post-training quantization (Table 1)"
    work = staticmethod(measure_model)

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        """One cell per algorithm and environment, or a single one for the user's own zip."""
        episodes = QUICK_EPISODES if quick else EPISODES
        if options.model:
            path = Path(options.model)
            named: dict[str, Any] = {"model": str(path), "env": options.env, "normaliser": options.normaliser}
            files = {name: named[name] for name in ("model", "normaliser") if named[name]}
            sums = {f"{name}_sha256": _checksum(f"--{name}", Path(file)) for name, file in files.items()}
            few = episodes if not quick else 2
            settings = {**named, "trust": options.trust, **sums, "episodes": few, **corrections(quick)}
            return [StudyCell(f"{path.stem} {options.env}", settings, 60.0)]
        models = [(algorithm, env, steps, 0, steps / 1000) for algorithm, env, steps in QUICK]
        if not quick:
            playable = [(pair, recipe) for pair, recipe in recipes.RECIPES.items() if recipes.can_play(pair[1])]
            models = [(*pair, recipe.steps, recipe.seed, recipe.seconds) for pair, recipe in playable]
        return [
            StudyCell(f"{name} {env}", settings_of(name, env, steps, episodes, seed) | corrections(quick), seconds)
            for name, env, steps, seed, seconds in models
        ]

    def tables(self, view: list[Model]) -> list[Table]:
        return [
            Table.of("Return of an episode: Shoal's and the paper's", [table_row(model) for model in view]),
            Table.of("Over all models", list(summary_rows(view))),
        ]

    def findings(self, view: list[Model]) -> Iterable[str]:
        theirs = paper_errors()
        yield (
            "Paper: 8 and 16 bits cost 2 to 5 % of the reward on average. Its own 36 cells: "
            f"{statistics.mean(theirs['fp16']):.1%} (fp16) and {statistics.mean(theirs['int8']):.1%} (int8)."
        )
        for name in VARIANTS:
            if errors := errors_of(view, name):
                yield sentence(name, errors)

    def panels(self, view: list[Model]) -> list[Panel]:
        return [panel_of(algorithm, view) for algorithm in dict.fromkeys(model["algorithm"] for model in view)]


def losses_of(rows: list[Model], name: str) -> dict[str, float]:
    """The relative error of every model that has this column, by cell; positive is worse than float32."""
    lines = {row["cell"]: line_of(row, *VARIANTS[name]) for row in rows}
    return {
        cell: line.relative_error
        for cell, line in lines.items()
        if line is not None and line.relative_error is not None
    }


def errors_of(rows: list[Model], name: str) -> dict[str, float]:
    """|relative error|, likewise."""
    return {cell: abs(loss) for cell, loss in losses_of(rows, name).items()}


def statistics_of(losses: Sequence[float]) -> dict[str, str | None]:
    """Relative errors of several models in a few numbers; a model that plays better than in float32 loses nothing."""
    if not losses:
        return dict.fromkeys(("mean |relative error|", "median", "mean loss", "models within 5 %"))
    errors = [abs(loss) for loss in losses]
    return {
        "mean |relative error|": f"{statistics.mean(errors):.1%}",
        "median": f"{statistics.median(errors):.1%}",
        "mean loss": f"{statistics.mean(max(0.0, loss) for loss in losses):.1%}",
        "models within 5 %": f"{sum(loss <= NEAR for loss in losses)} of {len(losses)}",
    }


def summary_rows(rows: list[Model]) -> Iterable[dict[str, Value]]:
    """A row per statistic, and the mean error of each algorithm; a column per precision."""
    every = {name: statistics_of(list(losses_of(rows, name).values())) for name in VARIANTS}
    for statistic in statistics_of(()):
        yield {"statistic": statistic, **{name: every[name][statistic] for name in VARIANTS}}
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        models = [row for row in rows if row["algorithm"] == algorithm]
        means = {name: statistics_of(list(losses_of(models, name).values())) for name in VARIANTS}
        yield {
            "statistic": f"mean |relative error|, {algorithm.upper()}",
            **{name: means[name]["mean |relative error|"] for name in VARIANTS},
        }


def panel_of(algorithm: str, rows: list[Model]) -> Panel:
    """The errors of an algorithm's models."""
    models = [row for row in rows if row["algorithm"] == algorithm]
    series = []
    for name in VARIANTS:
        if errors := {cell: 100 * error for cell, error in errors_of(models, name).items()}:
            series.append(Series(name, [errors.get(row["cell"]) for row in models]))
    ticks = [row["env"].removeprefix("gym:").rpartition("-")[0] or row["env"] for row in models]
    title = f"{algorithm.upper()} (dashed: 5 %)"
    return Panel(title, "|relative error| of the return, %", series, ticks=ticks, level=5.0, points=True)


def settings_of(algorithm: str, env: str, steps: int, episodes: int, seed: int = 0) -> dict[str, Any]:
    """The settings of a cell."""
    recipe = recipes.digest_of(algorithm, env)
    return {"algorithm": algorithm, "env": env, "recipe": recipe, "steps": steps, "seed": seed, "episodes": episodes}


def line_of(row: Model, precision: str, correction: Correction = NOTHING) -> WidthRecord | None:
    """What was measured in a precision; None: nothing."""
    former = {CHANNELS: "int8 (an output)"}  # in cells that older versions stored
    names = (precision, former.get(precision))
    for line in row["precisions"]:
        measured = WidthRecord(**line)
        if measured.precision in names and Correction(measured.corrected, measured.rounding) == correction:
            return measured
    return None


def sentence(precision: str, errors: dict[str, float]) -> str:
    """Mean and largest error of a precision, and whether the claim holds."""
    mean, worst = statistics.mean(errors.values()), max(errors, key=lambda cell: errors[cell])
    verdict = "within the paper's 5 %" if mean <= NEAR else "more than the paper's 5 %"
    over = f"{precision}: mean |relative error| {mean:.1%} over {counted(len(errors), 'model')}"
    return f"{over}: {verdict}; largest {errors[worst]:.1%} ({worst})."


def paper_of(env: str, algorithm: str) -> tuple[float, float, float] | None:
    """The paper's results for an environment, e.g. of ALE/Breakout-v5 or BreakoutNoFrameskip-v4."""
    name = env.removeprefix("gym:").removeprefix("ALE/").partition("-")[0].removesuffix("NoFrameskip")
    return PAPER.get(NAMES.get(name, name), {}).get(algorithm)


def paper_errors() -> dict[str, list[float]]:
    """|relative error| of every cell of the paper's table."""
    every = [cell for by in PAPER.values() for cell in by.values()]
    return {
        "fp16": [abs(full - half) / abs(full) for full, half, _ in every],
        "int8": [abs(full - small) / abs(full) for full, _, small in every],
    }


def table_row(row: Model) -> dict[Column, Value]:
    """A row of the printed table."""
    theirs = paper_of(row["env"], row["algorithm"])
    full, channels = line_of(row, "float32"), line_of(row, CHANNELS)
    assert full is not None and channels is not None
    lines = {name: line_of(row, *variant) for name, variant in VARIANTS.items()}
    return {
        Column("algorithm"): row["algorithm"].upper(),
        Column("environment"): row["env"],
        Column("fp32"): full.return_mean,
        **{Column(name): None if line is None else line.return_mean for name, line in lines.items()},
        Column("± (95 %)"): full.return_ci95,
        Column("equal actions", format=".1%"): channels.equal_actions,
        Column("paper fp32 / fp16 / int8"): " / ".join(f"{value:g}" for value in theirs) if theirs else "–",
    }
