"""Does an 8-bit MAC unit train a team? Cooperative navigation through schemes, and what breaks first.

The second part puts only the critics, only the actors or only the update into low precision. Actors always play in
float32: the schemes are those of learning.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import Diverged
from shoal.results import Column, Panel, Table, Value
from shoal.training.config import TrainConfig
from shoal.training.returns import confidence95
from shoal_papers.cells import Options, StudyCell
from shoal_papers.mac.runs import EVENTS, SEEDS
from shoal_papers.seeds import NOT_RUN, mean_or_none, spread, with_interval
from shoal_papers.study import CellStudy, Data

WORLD: dict[str, Any] = {"env": "cooperative-navigation", "rules": "openai", "agents": 3}
QUIET: dict[str, Any] = {"tensorboard": False, "checkpoint_every": 0, "threads": 1}
EPISODES, QUICK_EPISODES = 8_000, 1_200
EVALUATED = 200
POINTS = 40  # points of a stored curve, at most
FULL, UNIT = "float32", "E5M2:5+E6M5"
SCHEMES = (FULL, "bf16", UNIT, "E5M2:5+Q8.13", "E4M3:5+E6M5", "hfp8")
SLOWEST = "hfp8"
FRAGILE = "E4M3:5+E6M5"  # the unit whose parts are tried one by one
KINDS: dict[str, dict[str, Any]] = {
    FULL: {},
    **{scheme: {"scheme": scheme, "loss_scale": "dynamic"} for scheme in SCHEMES[1:]},
    f"{FRAGILE}, critics only": {"scheme": FRAGILE, "loss_scale": "dynamic", "scheme_networks": "critics"},
    f"{FRAGILE}, actors only": {"scheme": FRAGILE, "loss_scale": "dynamic", "scheme_networks": "actors"},
    "update only, bf16": {"scheme": "float32; master=bf16"},
    "update only, bf16 stochastic": {"scheme": "float32; master=bf16, rounding=stochastic"},
    "update only, E4M3": {"scheme": "float32; master=E4M3"},
}
"""Settings by name."""
PARTS = tuple(KINDS)[len(SCHEMES) :]
QUICK = (FULL, UNIT)
SECONDS = {FULL: 30.0, "bf16": 100.0, SLOWEST: 170.0, PARTS[0]: 120.0, PARTS[1]: 60.0} | dict.fromkeys(PARTS[2:], 35.0)
"""About, for all episodes on one core; of all others as the unit."""
UNIT_SECONDS = 145.0
CLOSE = 0.1  # a return counts as kept if the interval of its loss ends within this share of float32's gain over random

TeamRun = Mapping[str, Any]  # what is kept of a run: see `train_team`
Groups = Mapping[str, Sequence[TeamRun]]  # runs by kind, each in the order of seeds


def train_team(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: train a team. That it diverges is a result, too; it has no return then."""
    from shoal.api import train
    from shoal.runs.observer import Observer

    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        config = TrainConfig(**settings["train"], **QUIET, update="torch", out=str(run)).checked()
        result, diverged = None, ""
        try:
            result = train(config, observer=Observer(), pictures=False)
        except Diverged as error:
            diverged = str(error)
        if result is not None and result.signal is not None:
            raise KeyboardInterrupt
        log = run / "metrics.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    last = lines[-1] if lines else {}
    macs = last.get("mac/macs") or 0
    return {
        "seed": config.seed,
        **curve(lines),
        "trained": result and result.return_deterministic,  # of the final policies in float32, without exploration
        "random": result and result.return_random,
        "scales": part(last, "scale/"),  # at the end, by network
        "skipped": part(last, "skipped/"),
        "shares": {event: float(f"{last[f'mac/{event}'] / macs:.4g}") for event in EVENTS} if macs else {},
        "diverged": diverged,
        "seconds": round(last.get("seconds", 0.0), 1),
    }


def part(line: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """The metrics with this prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in line.items() if name.startswith(prefix)}


def curve(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Training returns, each the mean of a run of lines."""
    groups = np.array_split(np.arange(len(lines)), min(POINTS, len(lines))) if lines else []
    return {
        "episodes": [float(lines[group[-1]]["episode"]) for group in groups],
        "returns": [round(float(np.mean([lines[k]["return_mean"] for k in group])), 3) for group in groups],
    }


# ---- the result -----------------------------------------------------------------------------------------------------


class MacTeams(CellStudy, name="mac-teams"):
    """Returns by scheme, and which part breaks first."""

    title = "A team trained through MAC units"
    caption = "Training return per agent: mean over seeds, band from worst to best"
    names_machines = True
    work = staticmethod(train_team)

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        """One run per kind and seed: the schemes first, the slowest of them last, then the parts."""
        episodes = QUICK_EPISODES if quick else EPISODES
        runs = [(name, seed) for seed in range(1 if quick else SEEDS) for name in (QUICK if quick else KINDS)]
        cells = []
        for name, seed in sorted(runs, key=lambda run: (run[0] in PARTS, run[0] == SLOWEST)):
            train = {**WORLD, **KINDS[name], "seed": seed, "episodes": episodes, "evaluate_episodes": EVALUATED}
            seconds = SECONDS.get(name, UNIT_SECONDS) * episodes / EPISODES
            stem = name.replace("+", "_").replace(":", "-").replace(",", "")
            cells.append(StudyCell(f"{stem} seed {seed}", {"kind": name, "train": train}, seconds))
        return cells

    def record(self, cell: StudyCell, result: dict[str, Any]) -> dict[str, Any]:
        return {"kind": cell.settings["kind"], "run": result}

    def view(self, data: Data) -> Groups:
        groups: dict[str, list[TeamRun]] = {}
        for row in sorted(data["rows"], key=lambda row: row["run"]["seed"]):
            groups.setdefault(row["kind"], []).append(row["run"])
        return groups

    def tables(self, view: Groups) -> list[Table]:
        title = f"Cooperative navigation, 3 agents, {EPISODES:,} episodes, per agent"
        return [Table.of(title, list(rows(view)))]

    def findings(self, view: Groups) -> list[str]:
        return [
            "The slides have no teams. Returns are those of the final policies without exploration, in float32; ± is "
            f"the 95 % interval over seeds. A return is kept if the interval of its loss ends within {CLOSE:.0%} of "
            "float32's gain over random policies, and lost if the interval is below zero and the mean loss larger than "
            "that.",
            *claims(view),
        ]

    def panels(self, view: Groups) -> list[Panel]:
        fragile = (FULL, FRAGILE, *PARTS)
        return [
            curve_panel("Schemes", view, SCHEMES),
            curve_panel(f"Parts of {FRAGILE}, and the update alone", view, fragile),
        ]


def rows(groups: Groups) -> Iterable[dict[Column, Value]]:
    """One row per kind, and one of random policies."""
    row: dict[Column, Value] = {}
    for name in KINDS:
        runs = groups.get(name, [])
        row = {
            Column("precision"): name,
            Column("seeds"): len(runs),
            Column("final return"): with_interval(final(runs)),
            Column("against float32"): "–" if name == FULL else with_interval(gaps(groups, name)) if runs else None,
            Column("verdict"): "–" if name == FULL else verdict(groups, name),
            Column("above random"): with_interval(above_random(runs)) if runs else None,
            Column("gain kept", format=".0%"): gain_kept(groups, name),
            Column("saturated MACs", "ppm", ".3g"): events(runs, "saturated"),
            Column("underflowed MACs", "ppm", ".3g"): events(runs, "underflowed"),
            Column("skipped", "steps", ".0f"): mean_or_none([sum(run["skipped"].values()) for run in runs]),
            Column("loss scales at the end"): scales(runs),
            Column("diverged", "seeds"): sum(bool(run["diverged"]) for run in runs) if runs else None,
            Column("time", "s", ",.0f"): mean_or_none([run["seconds"] for run in runs]),
        }
        yield row
    base = groups.get(FULL, [])
    yield {
        **dict.fromkeys(row),
        Column("precision"): "random policies",
        Column("seeds"): len(base),
        Column("final return"): with_interval([run["random"] for run in base if run["random"] is not None]),
        Column("verdict"): "–",
    }


def final(runs: Sequence[TeamRun]) -> list[float]:
    """Final returns of the runs that did not diverge."""
    return [run["trained"] for run in runs if run["trained"] is not None]


def gaps(groups: Groups, name: str) -> list[float]:
    """Final returns minus float32's of the same seed."""
    base = {run["seed"]: run["trained"] for run in groups.get(FULL, [])}
    pairs = [(run["trained"], base.get(run["seed"])) for run in groups.get(name, [])]
    return [own - other for own, other in pairs if own is not None and other is not None]


def above_random(runs: Sequence[TeamRun]) -> list[float]:
    """Final returns minus those of random policies with the same seed."""
    pairs = [(run["trained"], run["random"]) for run in runs]
    return [own - other for own, other in pairs if own is not None and other is not None]


def gain(groups: Groups) -> float | None:
    """What float32 gains over random policies."""
    return mean_or_none(above_random(groups.get(FULL, [])))


def gain_kept(groups: Groups, name: str) -> float | None:
    """The share of float32's gain that this kind has, too."""
    whole, own = gain(groups), gaps(groups, name)
    return 1 + float(np.mean(own)) / whole if whole and own else None


def verdict(groups: Groups, name: str) -> str:
    """Whether this kind keeps float32's return."""
    runs, base = groups.get(name, []), groups.get(FULL, [])
    if not runs or not base:
        return NOT_RUN
    if any(run["diverged"] for run in runs):
        return "diverges"
    own = gaps(groups, name)
    whole = gain(groups)
    if len(own) < SEEDS or whole is None:
        return "inconclusive"
    span = CLOSE * abs(whole)
    middle, half = float(np.mean(own)), confidence95(np.array(own))
    if middle - half >= -span:
        return "keeps the return"
    return "loses" if middle + half < 0 and middle < -span else "inconclusive"


def claims(groups: Groups) -> Iterable[str]:
    """Whether an 8-bit unit trains a team, and which part breaks."""
    verdicts = {name: verdict(groups, name) for name in KINDS if name != FULL}
    named = [
        f"{name}: {said} ({with_interval(gaps(groups, name))})" for name, said in verdicts.items() if said != NOT_RUN
    ]
    if not named:
        return
    above = with_interval(above_random(groups.get(UNIT, [])))
    yield (
        f"Question: does an 8-bit MAC unit train a team? {UNIT} against random policies: {above}; against float32: "
        f"{verdicts[UNIT]}."
    )
    yield f"Against float32: {'; '.join(named)}."
    broken = [name for name in PARTS if verdicts[name] in ("loses", "diverges")]
    if all(verdicts[name] != NOT_RUN for name in PARTS):
        yield f"What breaks first, part by part: {', '.join(broken) if broken else 'no part by itself'}."


def events(runs: Sequence[TeamRun], event: str) -> float | None:
    """Events per million MACs."""
    return mean_or_none([1e6 * run["shares"][event] for run in runs if event in run["shares"]])


def scales(runs: Sequence[TeamRun]) -> str | None:
    """Loss scales by network, as powers of two, over all seeds."""
    powers: dict[str, set[float]] = {}
    for run in runs:
        for network, scale in run["scales"].items():
            powers.setdefault(network, set()).add(float(np.log2(scale)))
    texts = [
        f"{network} 2^{min(of_network):.0f}" + (f" to 2^{max(of_network):.0f}" if len(of_network) > 1 else "")
        for network, of_network in powers.items()
    ]
    return ", ".join(texts) or None


def curve_panel(title: str, groups: Groups, names: Sequence[str]) -> Panel:
    """Training returns over episodes."""
    series = []
    for name in names:
        runs = [run for run in groups.get(name, []) if run["returns"]]
        if runs:
            shortest = min(len(run["returns"]) for run in runs)
            values = np.array([run["returns"][:shortest] for run in runs])  # (seeds, points)
            series.append(spread(name, runs[0]["episodes"][:shortest], values))
    return Panel(title, "return per agent", series, "episode")
