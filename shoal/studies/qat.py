"""Figure 4: quantization-aware training keeps the reward down to 5 or 6 bits and is mostly above post-training.

And what the paper does not have: critics left in full precision, as nobody plays them; and teams of MADDPG and MASAC,
all agents in few bits or one agent alone. Both kinds of quantization are the same one here: weights symmetric with one
scale an output, the layers' inputs with a zero point.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from shoal.errors import UserError
from shoal.policies.run import load_run
from shoal.policies.torch_policy import TorchPolicy
from shoal.policies.widths import Sweep, Width, sweep
from shoal.quantization.affine import Scheme
from shoal.results import Panel, Result, Series, Table, Value
from shoal.studies import baselines, ptq_table, recipes
from shoal.studies.cells import Cell, Cells, total_seconds
from shoal.studies.study import Advance, Options, panel_result
from shoal.training.config import TrainConfig
from shoal.training.returns import confidence95

BITS = (8, 6, 4, 2)
TASKS = {  # two for each algorithm, and after how many steps it has learnt them
    ("ppo", "CartPole-v1"): 40_000,
    ("ppo", "Pendulum-v1"): 60_000,
    ("a2c", "CartPole-v1"): 150_000,
    ("a2c", "MountainCarContinuous-v0"): 50_000,
    ("ddpg", "Pendulum-v1"): 8_000,
    ("ddpg", "Reacher-v5"): 6_000,
}
QUICK_TASKS = {("ppo", "CartPole-v1"): 15_000}
WORLDS: dict[int, dict[str, Any]] = {  # twelve agents only collide in cooperative navigation within minutes
    3: {"env": "cooperative-navigation", "rules": "openai", "episodes": 3_000, "warmup": 5_000},
    12: {"env": "predator-prey", "episodes": 800, "warmup": 5_000},
}
"""Settings of the teams by number of agents; all others are the papers'."""
QUICK_WORLDS = {3: {**WORLDS[3], "episodes": 1_000}}
TEAM_SECONDS = {("maddpg", 3): 20, ("masac", 3): 25, ("maddpg", 12): 35, ("masac", 12): 50}
TEAM_PLAYED = 500
"""Episodes that a team plays in each width."""
SEEDS = 3
WHOLE: dict[str, dict[str, Any]] = {"": {}}
MODEL_PARTS = {**WHOLE, " actors": {"critics": False}}
TEAM_PARTS = {**MODEL_PARTS, " one agent": {"only": 0}}
"""What of a model or a team is trained for few bits: the end of a cell's name, and its settings."""
NEAR = 0.05
"""A return is as good as the full one if it is at most this part of |full| below it."""
SLOWER = 2.0
"""About how much longer quantization-aware training takes."""


def cells(quick: bool) -> list[Cell]:
    """Trainings in full precision, quantized afterwards, and trainings for each width.

    The first seed first, but last of all what nobody else has asked for: critics in full precision.
    """
    found: list[Cell] = []
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
                    found.append(Cell(f"{algorithm} {env} seed {seed} {how}{part}", settings | own, seconds))
            for algorithm, agents in list(TEAM_SECONDS)[: 1 if quick else None]:
                learning = (QUICK_WORLDS if quick else WORLDS)[agents]
                seconds = slower * TEAM_SECONDS[algorithm, agents] * learning["episodes"] / WORLDS[agents]["episodes"]
                settings = {"algorithm": algorithm, "agents": agents, "learning": learning, "only": None, **widths}
                settings |= {"seed": seed, "episodes": TEAM_PLAYED}
                for part, own in (TEAM_PARTS if bits else WHOLE).items():
                    name = f"{algorithm} {agents} agents seed {seed} {how}{part}"
                    found.append(Cell(name, settings | own, seconds))
    return sorted(found, key=lambda cell: not cell.settings.get("critics", True))


def length(quick: bool, options: Options) -> float:
    """Seconds, about."""
    return total_seconds(cells(quick))


def measured(quick: bool, advance: Advance, options: Options) -> dict[str, Any]:
    """Train everything, and play it in its widths."""
    if sentence := baselines.missing_packages():
        raise UserError(sentence)
    done = Cells("qat", quick, options, advance)
    results = done.run(cells(quick), work)
    if not results:
        raise UserError(f"Nothing could be measured: {' '.join(done.failed)}")
    if not quick:
        done.failed += recipes.left_out()
    return {"rows": [row for result in results.values() for row in result["rows"]], "failed": done.failed}


def work(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One training: its return as it was trained and, if that was in full precision, in every width afterwards."""
    if "agents" in settings:
        with tempfile.TemporaryDirectory() as run:
            policy: TorchPolicy = _team(settings, run)
            return {"rows": list(_rows(policy, settings))}
    algorithm, env, bits = settings["algorithm"], settings["env"], settings["bits"]
    critics = settings.get("critics", True)
    policy = baselines.trained_model(algorithm, env, settings["seed"], settings["steps"], folder, bits, critics)
    return {"rows": list(_rows(policy, settings))}


def _team(settings: dict[str, Any], run: str) -> TorchPolicy:
    from shoal.training.loop import train

    config = TrainConfig(
        **settings["learning"], agents=settings["agents"], algorithm=settings["algorithm"], seed=settings["seed"],
        qat_bits=settings["bits"], qat_agent=settings["only"], qat_critics=settings.get("critics", True),
        threads=1, out=run, tensorboard=False, checkpoint_every=0, evaluate_episodes=0,
    )  # fmt: skip
    if train(config).signal is not None:
        raise KeyboardInterrupt
    return load_run(Path(run), {}, False, lambda sentence: None)


ReturnRow = TypedDict(
    "ReturnRow", {"algorithm": str, "task": str, "seed": int, "how": str, "bits": int, "return": float}
)


class Found(TypedDict):
    """The data of the study."""

    rows: list[ReturnRow]
    failed: list[str]


def _rows(policy: TorchPolicy, settings: dict[str, Any]) -> Iterable[ReturnRow]:
    team, bits = "agents" in settings, settings["bits"]
    task = f"{settings['learning']['env']}, {settings['agents']} agents" if team else settings["env"]

    def row(how: str, bits: int, found: float) -> ReturnRow:
        about = settings["algorithm"], settings["seed"]
        return {"algorithm": about[0], "task": task, "seed": about[1], "how": how, "bits": bits, "return": found}

    if bits is not None:
        found = sweep(policy, Sweep((), episodes=settings["episodes"]))
        trained = next((row for row in found.rows if row.what == "trained"), None)
        if trained is None:
            raise UserError("Quantization was never switched on: the training was too short.")
        yield row(_how(settings), bits, trained.return_mean)
        return
    widths = tuple(Width(f"{n} bits", Scheme(n, per_channel=True)) for n in settings["ptq"])
    for how, agents in (("PTQ", None), ("PTQ, one agent", (0,))) if team else (("PTQ", None),):
        found = sweep(policy, Sweep(widths, ("both",), episodes=settings["episodes"], agents=agents))
        if agents is None:
            yield row("float32", 32, found.rows[0].return_mean)
        for narrow in found.rows[1:]:
            yield row(how, narrow.bits, narrow.return_mean)


def _how(settings: dict[str, Any]) -> str:
    if settings.get("only") is not None:
        return "QAT, one agent"
    return "QAT" if settings.get("critics", True) else "QAT, actors"


def study(found: Found) -> Result:
    """Means over seeds: both kinds of quantization over bits beside full precision."""
    groups = grouped(found["rows"])
    findings = [
        "Paper: the return is kept down to 5 or 6 bits and falls below; at 8 bits nothing is lost; "
        "quantization-aware training is generally above post-training quantization."
    ]
    findings += [sentence for name, group in groups.items() for sentence in sentences(name, group)]
    findings += losses(groups)
    findings += against(groups)
    cells = [row for name, group in groups.items() for row in table_rows(name, group)]
    tables = [Table.of("Return of an episode over bits, mean over seeds", cells)] if cells else []
    panels = [panel_of(name, group) for name, group in groups.items()]
    title = "Quantization-aware training against post-training quantization (Figure 4)"
    return panel_result("qat", title, tables, [*findings, *found["failed"]], panels, found)


def table_rows(name: str, group: "Group") -> Iterable[dict[str, Value]]:
    """A row for each kind of quantization."""
    for how in kinds(group):
        means = {str(bits): _mean(group.get((how, bits))) for bits in BITS}
        seeds = max(len(values) for (kind, _), values in group.items() if kind == how)
        full = _mean(group.get(("float32", 32)))
        yield {"model": name, "how": how, "seeds": seeds, "float32": full, **means}


def panel_of(name: str, group: "Group") -> Panel:
    """Both kinds of quantization over bits; the dashed line is full precision."""
    widths = sorted({bits for how, bits in group if how != "float32"}, reverse=True)
    series = [
        Series(
            how,
            [_mean(group.get((how, bits))) for bits in widths],
            halves=[_half(group.get((how, bits))) for bits in widths],
        )
        for how in kinds(group)
    ]
    full = _mean(group.get(("float32", 32)))
    return Panel(name, "return of an episode", series, "bits", list(map(str, widths)), level=full)


def kinds(group: "Group") -> list[str]:
    """The kinds of quantization that were measured."""
    return [how for how in HOWS if any(kind == how for kind, _ in group)]


HOWS = ("PTQ", "QAT", "QAT, actors", "PTQ, one agent", "QAT, one agent")
AGAINST = (("QAT", "PTQ"), ("QAT, actors", "PTQ"), ("QAT, actors", "QAT"), ("QAT, one agent", "PTQ, one agent"))
Group = dict[tuple[str, int], list[float]]
"""Returns of all seeds by kind and bits."""


def grouped(rows: list[ReturnRow]) -> dict[str, Group]:
    """The returns of each algorithm and task."""
    groups: dict[str, Group] = {}
    for row in rows:
        group = groups.setdefault(f"{row['algorithm'].upper()}, {row['task']}", {})
        group.setdefault((row["how"], row["bits"]), []).append(row["return"])
    return groups


def sentences(name: str, group: Group) -> Iterable[str]:
    """Down to how many bits each kind keeps the full return."""
    full = _mean(group.get(("float32", 32)))
    if full is None:
        return
    kept = []
    for how in HOWS:
        widths = sorted((bits for kind, bits in group if kind == how), reverse=True)
        fewest = None
        for bits in widths:
            mean = _mean(group[how, bits])
            if mean is None or mean < full - NEAR * abs(full):
                break
            fewest = bits
        if widths:
            kept.append(f"{how} {'at no width' if fewest is None else f'down to {fewest} bits'}")
    if kept:
        yield f"{name}: {full:.1f} in float32; within 5 % of it: {', '.join(kept)}."


def losses(groups: dict[str, Group]) -> list[str]:
    """What rounding afterwards costs on average, of models and of teams, which alone have one agent in few bits."""
    said = []
    teams = {name: any(how.endswith("one agent") for how, _ in group) for name, group in groups.items()}
    for kind, is_team in (("models", False), ("teams", True)):
        lost: dict[int, list[float]] = {}
        for name, group in groups.items():
            full = _mean(group.get(("float32", 32)))
            for (how, bits), values in group.items():
                if teams[name] == is_team and how == "PTQ" and full:
                    lost.setdefault(bits, []).append((full - sum(values) / len(values)) / abs(full))
        if lost:
            parts = [f"{np.mean(lost[bits]):.1%} at {bits} bits" for bits in sorted(lost, reverse=True)]
            said.append(f"PTQ costs {kind} on average {', '.join(parts)}.")
    return said


def against(groups: dict[str, Group]) -> list[str]:
    """How often one kind of quantization is as good as another or better."""
    said = []
    for one, other in AGAINST:
        pairs = [
            (_mean(values), _mean(group.get((other, bits))))
            for group in groups.values()
            for (how, bits), values in group.items()
            if how == one
        ]
        both = [(first, second) for first, second in pairs if first is not None and second is not None]
        if both:
            above = sum(first >= second for first, second in both)
            said.append(f"{one} is at or above {other} in {above} of {len(both)} cells.")
    return said


def _mean(values: list[float] | None) -> float | None:
    return sum(values) / len(values) if values else None


def _half(values: list[float] | None) -> float | None:
    return confidence95(np.array(values)) if values and len(values) > 1 else None
