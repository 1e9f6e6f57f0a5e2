"""Figure 4: quantization-aware training keeps the reward down to 5 or 6 bits and mostly beats PTQ.

Beyond the paper: critics left in full precision, as they are not deployed; and MADDPG and MASAC teams with all agents
or only one agent quantized. Both methods use the same quantization here: weights symmetric with one scale per output
channel, layer inputs with a zero point.
"""

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import UserError
from shoal.policies.quantize import WidthSweep, sweep
from shoal.policies.run import load_run
from shoal.policies.torch_policy import TorchPolicy
from shoal.quantization.quantizer import Quantizer, Width
from shoal.results import Panel, Series, Table, Value
from shoal.training.config import TrainConfig
from shoal_papers.cells import Options, StudyCell
from shoal_papers.quarl import baselines, ptq_table, recipes
from shoal_papers.seeds import half_width, mean_or_none
from shoal_papers.study import Data

BITS = (8, 6, 4, 2)
TASKS = {  # two per algorithm, and the steps that it needs to learn them
    ("ppo", "CartPole-v1"): 40_000,
    ("ppo", "Pendulum-v1"): 60_000,
    ("a2c", "CartPole-v1"): 150_000,
    ("a2c", "MountainCarContinuous-v0"): 50_000,
    ("ddpg", "Pendulum-v1"): 8_000,
    ("ddpg", "Reacher-v5"): 6_000,
}
QUICK_TASKS = {("ppo", "CartPole-v1"): 15_000}
WORLDS: dict[int, dict[str, Any]] = {  # within minutes twelve agents in cooperative navigation only learn to collide
    3: {"env": "cooperative-navigation", "rules": "openai", "episodes": 3_000, "warmup": 5_000},
    12: {"env": "predator-prey", "episodes": 800, "warmup": 5_000},
}
"""Settings of the teams by number of agents; all others are the papers' defaults."""
QUICK_WORLDS = {3: {**WORLDS[3], "episodes": 1_000}}
TEAM_SECONDS = {("maddpg", 3): 20, ("masac", 3): 25, ("maddpg", 12): 35, ("masac", 12): 50}
TEAM_PLAYED = 500  # evaluation episodes of a team at each width
SEEDS = 3
WHOLE: dict[str, dict[str, Any]] = {"": {}}
MODEL_PARTS = {**WHOLE, " actors": {"critics": False}}
TEAM_PARTS = {**MODEL_PARTS, " one agent": {"only": 0}}
"""What is quantized in training: the suffix of a cell's name, and its settings."""
NEAR = 0.05  # a return counts as kept if it is at most this fraction of |full| below the full-precision one
SLOWER = 2.0  # approximate slowdown of quantization-aware training


def train_and_quantize(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell, one training: its return as trained and, after full precision, at every width it is quantized to."""
    if "agents" in settings:
        with tempfile.TemporaryDirectory() as run:
            return {"rows": list(_rows(_team(settings, run), settings))}
    algorithm, env, seed, steps = (settings[name] for name in ("algorithm", "env", "seed", "steps"))
    critics = settings.get("critics", True)
    policy = baselines.trained_model(algorithm, env, seed, steps, folder, settings["bits"], critics)
    return {"rows": list(_rows(policy, settings))}


def _team(settings: dict[str, Any], run: str) -> TorchPolicy:
    from shoal.api import train
    from shoal.runs.observer import Observer

    config = TrainConfig(
        **settings["learning"], agents=settings["agents"], algorithm=settings["algorithm"], seed=settings["seed"],
        qat_bits=settings["bits"], qat_agent=settings["only"], qat_critics=settings.get("critics", True),
        threads=1, out=run, tensorboard=False, checkpoint_every=0, evaluate_episodes=0,
    )  # fmt: skip
    if train(config, observer=Observer(), pictures=False).signal is not None:
        raise KeyboardInterrupt
    return load_run(Path(run), {}, False, lambda sentence: None)


def _rows(policy: TorchPolicy, settings: dict[str, Any]) -> Iterable[dict[str, Any]]:
    team, bits = "agents" in settings, settings["bits"]
    task = f"{settings['learning']['env']}, {settings['agents']} agents" if team else settings["env"]

    about = {"algorithm": settings["algorithm"], "task": task, "seed": settings["seed"]}

    def row(how: str, bits: int, reached: float) -> dict[str, Any]:
        return {**about, "how": how, "bits": bits, "return": reached}

    if bits is not None:
        swept = sweep(policy, WidthSweep((), episodes=settings["episodes"]))
        trained = next((row for row in swept.rows if row.what == "trained"), None)
        if trained is None:
            raise UserError("Quantization was never switched on: the training was too short.")
        yield row(_how(settings), bits, trained.return_mean)
        return
    widths = tuple(Width(f"{n} bits", Quantizer(n, per_channel=True)) for n in settings["ptq"])
    for how, agents in (("PTQ", None), ("PTQ, one agent", (0,))) if team else (("PTQ", None),):
        swept = sweep(policy, WidthSweep(widths, ("both",), episodes=settings["episodes"], agents=agents))
        if agents is None:
            yield row("float32", 32, swept.rows[0].return_mean)
        for narrow in swept.rows[1:]:
            yield row(how, narrow.bits, narrow.return_mean)


def _how(settings: dict[str, Any]) -> str:
    if settings.get("only") is not None:
        return "QAT, one agent"
    return "QAT" if settings.get("critics", True) else "QAT, actors"


HOWS = ("PTQ", "QAT", "QAT, actors", "PTQ, one agent", "QAT, one agent")
AGAINST = (("QAT", "PTQ"), ("QAT, actors", "PTQ"), ("QAT, actors", "QAT"), ("QAT, one agent", "PTQ, one agent"))
SeedReturns = dict[tuple[str, int], list[float]]  # returns of all seeds by method and bits
Groups = dict[str, SeedReturns]  # the returns of each algorithm and task


class Qat(baselines.ModelStudy, name="qat"):
    """Means over seeds of both methods over bits, compared with full precision."""

    title = "Quantization-aware training against post-training quantization (Figure 4)"
    work = staticmethod(train_and_quantize)

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        """Trainings in full precision, quantized afterwards, and quantization-aware trainings for each width.

        The first seed first; critics in full precision, which the paper does not have, last of all.
        """
        every: list[StudyCell] = []
        for seed in range(1 if quick else SEEDS):
            for bits in (None, 4) if quick else (None, *BITS):
                slower = 1.0 if bits is None else SLOWER
                how = "float32" if bits is None else f"{bits} bits"
                widths = {"bits": bits, "ptq": [4, 2] if quick else list(BITS)}
                for (algorithm, env), steps in (QUICK_TASKS if quick else TASKS).items():
                    if not recipes.can_play(env):
                        continue
                    recipe = recipes.RECIPES[algorithm, env]
                    settings = ptq_table.settings_of(algorithm, env, steps, 20 if quick else 100, seed) | widths
                    seconds = slower * recipe.seconds * steps / recipe.steps
                    for part, own in (MODEL_PARTS if bits else WHOLE).items():
                        every.append(StudyCell(f"{algorithm} {env} seed {seed} {how}{part}", settings | own, seconds))
                for algorithm, agents in list(TEAM_SECONDS)[: 1 if quick else None]:
                    learning = (QUICK_WORLDS if quick else WORLDS)[agents]
                    seconds = (
                        slower * TEAM_SECONDS[algorithm, agents] * learning["episodes"] / WORLDS[agents]["episodes"]
                    )
                    settings = {"algorithm": algorithm, "agents": agents, "learning": learning, "only": None, **widths}
                    settings |= {"seed": seed, "episodes": TEAM_PLAYED}
                    for part, own in (TEAM_PARTS if bits else WHOLE).items():
                        name = f"{algorithm} {agents} agents seed {seed} {how}{part}"
                        every.append(StudyCell(name, settings | own, seconds))
        return sorted(every, key=lambda cell: not cell.settings.get("critics", True))

    def records(self, cells: Iterable[StudyCell], results: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for result in results.values() for row in result["rows"]]

    def view(self, data: Data) -> Groups:
        groups: Groups = {}
        for row in data["rows"]:
            group = groups.setdefault(f"{row['algorithm'].upper()}, {row['task']}", {})
            group.setdefault((row["how"], row["bits"]), []).append(row["return"])
        return groups

    def tables(self, view: Groups) -> list[Table]:
        rows = [row for name, group in view.items() for row in table_rows(name, group)]
        return [Table.of("Return of an episode over bits, mean over seeds", rows)] if rows else []

    def findings(self, view: Groups) -> Iterable[str]:
        yield (
            "Paper: the return is kept down to 5 or 6 bits and falls below; at 8 bits nothing is lost; "
            "quantization-aware training generally beats post-training quantization."
        )
        for name, group in view.items():
            yield from sentences(name, group)
        yield from losses(view)
        yield from against(view)

    def panels(self, view: Groups) -> list[Panel]:
        return [panel_of(name, group) for name, group in view.items()]


def table_rows(name: str, group: SeedReturns) -> Iterable[dict[str, Value]]:
    """One row per method."""
    for how in kinds(group):
        means = {str(bits): mean_or_none(group.get((how, bits))) for bits in BITS}
        seeds = max(len(values) for (kind, _), values in group.items() if kind == how)
        full = mean_or_none(group.get(("float32", 32)))
        yield {"model": name, "how": how, "seeds": seeds, "float32": full, **means}


def panel_of(name: str, group: SeedReturns) -> Panel:
    """Both methods over bits; the dashed line is full precision."""
    widths = sorted({bits for how, bits in group if how != "float32"}, reverse=True)
    series = [
        Series(
            how,
            [mean_or_none(group.get((how, bits))) for bits in widths],
            halves=[half_width(group.get((how, bits))) for bits in widths],
        )
        for how in kinds(group)
    ]
    full = mean_or_none(group.get(("float32", 32)))
    return Panel(name, "return of an episode", series, "bits", list(map(str, widths)), level=full)


def kinds(group: SeedReturns) -> list[str]:
    """The methods that were measured."""
    return [how for how in HOWS if any(kind == how for kind, _ in group)]


def sentences(name: str, group: SeedReturns) -> Iterable[str]:
    """The fewest bits at which each method keeps the full-precision return."""
    full = mean_or_none(group.get(("float32", 32)))
    if full is None:
        return
    kept = []
    for how in HOWS:
        widths = sorted((bits for kind, bits in group if kind == how), reverse=True)
        fewest = None
        for bits in widths:
            mean = mean_or_none(group[how, bits])
            if mean is None or mean < full - NEAR * abs(full):
                break
            fewest = bits
        if widths:
            kept.append(f"{how} {'at no width' if fewest is None else f'down to {fewest} bits'}")
    if kept:
        yield f"{name}: {full:.1f} in float32; within 5 % of it: {', '.join(kept)}."


def losses(groups: Groups) -> list[str]:
    """The average cost of post-training quantization, for models and for teams (all agents, and one agent alone)."""
    said = []
    teams = {name: any(how.endswith("one agent") for how, _ in group) for name, group in groups.items()}
    for kind, is_team in (("models", False), ("teams", True)):
        lost: dict[int, list[float]] = {}
        for name, group in groups.items():
            full = mean_or_none(group.get(("float32", 32)))
            for (how, bits), values in group.items():
                if teams[name] == is_team and how == "PTQ" and full:
                    lost.setdefault(bits, []).append((full - sum(values) / len(values)) / abs(full))
        if lost:
            parts = [f"{np.mean(lost[bits]):.1%} at {bits} bits" for bits in sorted(lost, reverse=True)]
            said.append(f"PTQ costs {kind} on average {', '.join(parts)}.")
    return said


def against(groups: Groups) -> list[str]:
    """How often one method is at least as good as another."""
    said = []
    for one, other in AGAINST:
        pairs = [
            (mean_or_none(values), mean_or_none(group.get((other, bits))))
            for group in groups.values()
            for (how, bits), values in group.items()
            if how == one
        ]
        both = [(first, second) for first, second in pairs if first is not None and second is not None]
        if both:
            above = sum(first >= second for first, second in both)
            said.append(f"{one} is at or above {other} in {above} of {len(both)} cells.")
    return said
