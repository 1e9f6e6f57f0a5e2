"""`shoal bench checkpoint`: the time of a checkpoint relative to the training between two of them, with a full ring."""

import statistics
import tempfile
import time
from pathlib import Path

from shoal.bench import Record
from shoal.profiling.cells import Cell
from shoal.profiling.rounds import Subject, Timing, one_round, play_step, rows_that_fit
from shoal.results import Column
from shoal.runs.checkpoint import Checkpoints
from shoal.training.config import TrainConfig
from shoal.training.evaluation import random_act
from shoal.training.loop import Training
from shoal.training.resume import snapshot

SAVES = 3
COLUMNS = {"checkpoint_ms": Column("checkpoint", "ms"), "training_ms": Column("training between two", "ms")}
PARTS = (3, 12)


def run(agents: int, seconds: float = 3.0) -> list[Record]:
    """The defaults: a checkpoint every 1,000 episodes, a ring of 10⁶ transitions if it fits."""
    config = TrainConfig(episodes=10**7, env="predator-prey", agents=agents)
    ring = rows_that_fit(config.capacity, config, ("maddpg",), ("engine",))
    subject = Subject(config, ("maddpg",), ring)
    timing = Timing(Cell("predator-prey", agents, "maddpg", "uniform", "engine"), ring)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        one_round(subject, timing, seconds)
    samples = config.checkpoint_every * (subject.training.env.spec.episode_length or 0)
    training = statistics.median(timing.totals()) * samples / config.update_every
    saving = statistics.median(_saves(subject.training, samples))
    times = {"checkpoint_ms": 1e3 * saving, "training_ms": 1e3 * training, "ratio": saving / training}
    return [{"agents": agents, "algorithm": "maddpg", "ring": ring, **times}]


def _saves(training: Training, samples: int) -> list[float]:
    """Seconds of a few checkpoints, each after this many new transitions."""
    act, seconds = random_act(training.env.spec, 0), []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        checkpoints = Checkpoints(Path(folder) / "checkpoints")
        for number in range(SAVES + 1):  # the first one writes the whole ring
            for _ in range(samples // training.config.copies):
                play_step(training, act)
            start = time.perf_counter()
            checkpoints.save(number, *snapshot(training), training.ring)
            seconds.append(time.perf_counter() - start)
    return seconds[1:]
