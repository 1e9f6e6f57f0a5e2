"""Table 2 and Figure 3: three policies that navigate among obstacles, in fp32 and int8 on a small device.

The paper's drone flies in Air Learning, and its RasPi swaps, hence the speed-ups of 14 and 18.85. Here one agent must
reach a goal among obstacles within an episode: predator-prey with one predator, whose goal drifts at random. The device
is a separate single-threaded process that runs the exported file without torch, with and without a limit on its address
space (RLIMIT_AS), where allocations that do not fit fail instead of swapping.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.envs.base import VectorEnv
from shoal.errors import UserError
from shoal.inference.file import PolicyFile
from shoal.inference.options import ExportPrecision
from shoal.policies.run import load_run
from shoal.results import Column, Panel, Series, Table, Value
from shoal.runs.disk import sha256
from shoal.system.calls import call_in_child
from shoal.system.child import Ended
from shoal.training.config import TrainConfig
from shoal.training.evaluation import Act
from shoal.waiting import Advance
from shoal_papers.cells import Cells, Options, StudyCell
from shoal_papers.quarl.edge_device import measure
from shoal_papers.study import CellStudy, Data

POLICIES: dict[str, tuple[int, ...]] = {"I": (64, 64, 64), "II": (256, 256, 256), "III": (4096, 512, 1024)}
PAPER: dict[str, dict[str, float]] = {  # milliseconds and per cent on a RasPi-3b
    "I": {"float32_ms": 0.147, "float32_success": 60, "int8_ms": 0.124, "int8_success": 45, "speed-up": 1.18},
    "II": {"float32_ms": 133.49, "float32_success": 74, "int8_ms": 9.53, "int8_success": 60, "speed-up": 14.0},
    "III": {"float32_ms": 208.115, "float32_success": 86, "int8_ms": 11.036, "int8_success": 75, "speed-up": 18.85},
}
PRECISIONS: tuple[ExportPrecision, ...] = ("float32", "int8")
TASK: dict[str, Any] = {
    "env": "predator-prey", "agents": 1, "prey": "random", "prey_count": 1, "obstacles": 3,
    "learning_rate": 1e-3, "batch": 256, "warmup": 5_000,
}  # fmt: skip
TRAINING = {"I": (10_000, 25, 150), "II": (10_000, 25, 400), "III": (8_000, 100, 900)}
"""Episodes, samples per update, and approximate seconds."""
QUICK = {"I": (1_200, 25, 15), "II": (1_200, 25, 30), "III": (300, 100, 40)}
SEEDS = 2
SPACES = (4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 256)
"""Megabytes of address space beyond what the runtime itself needs, in ascending order."""


def train_policy(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: train one policy, export it in both precisions, and count how often each reaches its goal."""
    from shoal.api import train
    from shoal.runs.observer import Observer

    name, seed = settings["policy"], settings["seed"]
    place = folder / "models"
    place.mkdir(parents=True, exist_ok=True)
    quiet: dict[str, Any] = {"tensorboard": False, "checkpoint_every": 0, "evaluate_episodes": 0, "threads": 1}
    with tempfile.TemporaryDirectory() as run:
        config = TrainConfig(**settings["learning"], **quiet, seed=seed, out=run)
        if train(config, observer=Observer(), pictures=False).signal is not None:
            raise KeyboardInterrupt
        policy = load_run(Path(run), {}, False, lambda sentence: None)
        row: dict[str, Any] = {"policy": name, "seed": seed, "episodes": policy.config.episodes, "files": {}}
        digest = sha256(json.dumps(settings).encode())[:10]
        for precision in PRECISIONS:
            path = place / f"edge-{name}-{digest}-{precision}.onnx"
            exported = policy.export(str(path), precision, single=True, tolerance=1.0, seed=seed + 1)
            row[f"{precision}_success"] = success(policy.make_env(50, 1), PolicyFile(path).play, settings["played"])
            row[f"{precision}_agreement"] = exported.agreement
            row["files"][precision] = {"file": path.name, "sha256": sha256(path.read_bytes()), "bytes": exported.bytes}
    return row


def success(env: VectorEnv, act: Act, episodes: int) -> float:
    """The share of episodes in which the goal was reached."""
    observation = env.reset()
    reached = np.zeros(env.copies, bool)
    ended: list[bool] = []
    while len(ended) < episodes:
        step = env.step(act(observation))
        reached |= step.reward[:, 0] > 0
        ended += reached[step.ended].tolist()
        reached[step.ended] = False
        observation = step.observation
    env.close()
    return float(np.mean(ended[:episodes]))


def on_device(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A cell: run one file in a separate process, without a limit and within the smallest sufficient address space."""
    path = folder / "models" / settings["file"]
    free = played(path, 0, settings["calls"])
    if free is None:
        raise UserError(f"'{path}' could not be run in a separate process.")
    enough = ((space, ran) for space in SPACES if (ran := played(path, space, settings["calls"])) is not None)
    least, limited = next(enough, (None, None))
    row = {name: settings[name] for name in ("policy", "precision", "bytes")}
    return {**row, "free": free, "least_mb": least, "limited": limited}


def played(path: Path, megabytes: int, calls: int) -> dict[str, float] | None:
    """The device's measurements, or None if it ran out of memory."""
    try:
        return dict(call_in_child(measure, str(path), megabytes, calls, timeout=120))
    except (Ended, TimeoutError, RuntimeError, UserError):
        return None


@dataclass(frozen=True)
class Summary:
    """Means over seeds of a policy, and the device's measurements in each precision."""

    policy: str
    seeds: int
    agreement: float
    success: dict[ExportPrecision, float]
    """Success rate in per cent."""
    device: dict[ExportPrecision, Mapping[str, Any]]

    @property
    def paper(self) -> dict[str, float]:
        """The paper's numbers for the same policy."""
        return PAPER[self.policy]

    @property
    def layers(self) -> str:
        """Sizes of the hidden layers."""
        return "-".join(map(str, POLICIES[self.policy]))

    def latency(self, precision: ExportPrecision) -> float | None:
        """Milliseconds per step."""
        return self.device[precision]["free"]["latency_ms"] if precision in self.device else None


class Edge(CellStudy, name="edge"):
    """Success rate, latency and memory of the three policies, compared with the paper."""

    title = "Policies on a small device (Table 2, Figure 3)"
    work = staticmethod(train_policy)

    def cells(self, quick: bool, options: Options) -> list[StudyCell]:
        """One training per policy and seed, the first seed first; the device takes little compared with training."""
        cells = []
        for seed in range(1 if quick else SEEDS):
            for name, (episodes, update_every, seconds) in (QUICK if quick else TRAINING).items():
                learning = {**TASK, "hidden": list(POLICIES[name]), "episodes": episodes, "update_every": update_every}
                settings = {"policy": name, "seed": seed, "learning": learning, "played": 200 if quick else 1_000}
                cells.append(StudyCell(f"policy {name} seed {seed}", settings, seconds))
        return cells

    def record(self, cell: StudyCell, result: dict[str, Any]) -> dict[str, Any]:
        return result

    def measured(self, quick: bool, advance: Advance, options: Options) -> dict[str, Any]:
        if not Path("/proc/self/statm").exists():
            raise UserError("The study edge needs Linux to limit and measure a process's address space.")
        return super().measured(quick, advance, options)

    def computed(self, done: Cells, quick: bool, options: Options) -> dict[str, Any]:
        """Train and export all policies, then run them on the device, one at a time."""
        data = super().computed(done, quick, options)
        calls = 300 if quick else 2_000
        device = [
            StudyCell(
                f"device {row['policy']} {precision}",
                {"policy": row["policy"], "precision": precision, "calls": calls, **row["files"][precision]},
                0.0,
            )
            for row in data["rows"]
            if row["seed"] == 0
            for precision in PRECISIONS
        ]
        return {**data, "device": list(done.run(device, on_device, workers=1, short=True).values())}

    def view(self, data: Data) -> list[Summary]:
        return [summary(name, data) for name in POLICIES if any(row["policy"] == name for row in data["rows"])]

    def tables(self, view: list[Summary]) -> list[Table]:
        tables = [
            Table.of("Goals reached", list(map(success_row, view))),
            Table.of(
                "On the device, one state at a time",
                [device_row(policy, precision) for policy in view for precision in policy.device],
            ),
        ]
        return [table for table in tables if table.rows]

    def findings(self, view: list[Summary]) -> list[str]:
        return [
            "Paper (RasPi-3b): int8 is 1.18, 14 and 18.85 times as fast as fp32 and its success rate 15, 14 and 11 "
            "points lower; the large speed-ups come from swapping.",
            *(sentence for policy in view for sentence in sentences(policy)),
            "The goal drifts at random, three obstacles are in the way, an episode has 25 steps; the limit applies to "
            "the process's address space (RLIMIT_AS) beyond what Python and ONNX Runtime use before the file is read.",
        ]

    def panels(self, view: list[Summary]) -> list[Panel]:
        ticks = [f"{row.policy}: {row.layers}" for row in view]
        reached = [Series(precision, [row.success[precision] for row in view]) for precision in PRECISIONS]
        took = [Series(precision, [row.latency(precision) for row in view]) for precision in PRECISIONS]
        for precision in PRECISIONS:
            label = f"paper, {precision}"
            reached.append(Series(label, [row.paper[f"{precision}_success"] for row in view]))
            took.append(Series(label, [row.paper[f"{precision}_ms"] for row in view]))
        return [
            Panel("Goals reached", "%", reached, ticks=ticks),
            Panel("Time per step", "milliseconds", took, ticks=ticks, log=True),
        ]


def summary(name: str, data: Data) -> Summary:
    """One policy over all seeds."""
    rows = [row for row in data["rows"] if row["policy"] == name]

    def mean(number: str) -> float:
        return float(np.mean([row[number] for row in rows]))

    success: dict[ExportPrecision, float] = {precision: 100 * mean(f"{precision}_success") for precision in PRECISIONS}
    measured = {row["precision"]: row for row in data["device"] if row["policy"] == name}
    device = {precision: measured[precision] for precision in PRECISIONS if precision in measured}
    return Summary(name, len(rows), mean("int8_agreement"), success, device)


def sentences(row: Summary) -> list[str]:
    """Compare a policy's precisions."""
    full, small = row.success["float32"], row.success["int8"]
    theirs = row.paper["float32_success"] - row.paper["int8_success"]
    said = [
        f"Policy {row.policy}: {full:.1f} % in float32, {small:.1f} % in int8: "
        f"{full - small:+.1f} points lost (paper: {theirs:.0f})."
    ]
    slow, fast = row.latency("float32"), row.latency("int8")
    if slow and fast:
        spaces = [row.device[precision]["least_mb"] for precision in PRECISIONS]
        most = [f"{space} MB" if space else f"more than {SPACES[-1]} MB" for space in spaces]
        said.append(
            f"Policy {row.policy}: int8 is {slow / fast:.2f} times as fast as float32 (paper: "
            f"{row.paper['speed-up']:g}); float32 runs within {most[0]} more than the bare runtime, "
            f"int8 within {most[1]}."
        )
    return said


def success_row(row: Summary) -> dict[Column, Value]:
    """A row of the table of success rates."""
    return {
        Column("policy"): row.policy,
        Column("layers"): row.layers,
        Column("seeds"): row.seeds,
        Column("fp32 success %"): row.success["float32"],
        Column("int8 success %"): row.success["int8"],
        Column("paper fp32 %"): row.paper["float32_success"],
        Column("paper int8 %"): row.paper["int8_success"],
        Column("equal actions", format=".1%"): row.agreement,
    }


def device_row(row: Summary, precision: ExportPrecision) -> dict[Column, Value]:
    """A row of the device's table."""
    device = row.device[precision]
    return {
        Column("policy"): row.policy,
        Column("precision"): precision,
        Column("ms"): device["free"]["latency_ms"],
        Column("p99 ms"): device["free"]["p99_ms"],
        Column("paper ms"): row.paper[f"{precision}_ms"],
        Column("process MB"): device["free"]["memory_mb"],
        Column("since the file was read MB"): device["free"]["policy_mb"],
        Column("file MB"): device["bytes"] / 2**20,
        Column("least limit MB"): device["least_mb"],
        Column("ms within it"): device["limited"]["latency_ms"] if device["limited"] else None,
    }
