"""Saving and resuming: the complete state of a run as arrays and counters, and what becomes of a ring that is gone.

A finished run that kept its ring continues exactly as if it had been longer from the start. Otherwise the ring is
refilled with the present policy first, as it was filled before the first update.
"""

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.envs.base import EnvSpec
from shoal.errors import UserError, counted
from shoal.runs.checkpoint import Arrays, Checkpoint
from shoal.runs.folder import RunFolder
from shoal.runs.interrupt import Interrupt
from shoal.runs.metrics import LogMark
from shoal.runs.observer import Observer
from shoal.training.clock import PhaseClock
from shoal.training.returns import Episode

if TYPE_CHECKING:
    from shoal.training.loop import Training


def snapshot(training: "Training") -> tuple[dict[str, Arrays], dict[str, Any]]:
    """Arrays by file, and counters; the ring is saved separately."""
    collected, samples = training.collector.state()
    learned, updates = training.learner.state()
    episodes = {"fresh": episodes_array(training.fresh), "last": episodes_array(training.last)}
    parts = {
        "weights": training.team.weights(),
        "optimizer": training.team.optimizer_state(),
        "random": training.team.random_state(),
        "environment": training.env.state(),
        "training": collected | episodes | learned,
    }
    meta = {
        **samples,
        **updates,
        "logged": training.logged,
        "log": training.log_mark,
        "milestones": training.milestones.passed,
        "stopped": training.stopped,
        "seconds": training.clock.seconds,
        "threads": training.threads,
        "settings": training.config.settings,
    }
    return parts, meta


def restore(training: "Training", checkpoint: Checkpoint) -> int:
    """Restore a new training to the state of the checkpoint; returns how many transitions of its ring are missing."""
    parts, meta = checkpoint.parts, checkpoint.meta
    missing = 0
    training.team.load_weights(parts.pop("weights"))  # large networks are not kept longer than needed
    training.team.load_optimizer_state(parts.pop("optimizer"))
    training.team.load_random_state(parts["random"])
    training.env.load_state(parts["environment"])
    if "replay" in parts:
        missing = checkpoint.load_ring(training.ring)
    training.ring_is_gone = "replay" not in parts
    arrays = parts["training"]
    training.collector.load_state(arrays, meta)
    training.learner.load_state(arrays, meta)
    training.fresh = array_episodes(arrays["fresh"], training.env.spec)
    training.last.extend(array_episodes(arrays["last"], training.env.spec))
    training.progress()
    training.logged, training.saved, training.log_mark = meta["logged"], training.episodes, LogMark(*meta["log"])
    training.milestones.passed = meta.get("milestones", meta["episodes"])  # older checkpoints have none
    training.stopped = None if training.config.extends(checkpoint) else meta.get("stopped")
    training.clock.seconds = dict(meta["seconds"])
    return missing


def episodes_array(episodes: list[Episode] | deque[Episode]) -> np.ndarray:
    """(n, 2 + N + F): returns of team, prey (NaN where it does not learn) and agents, and the world's metrics."""
    rows = [(e.team, np.nan if e.prey is None else e.prey, *e.agents, *e.metrics) for e in episodes]
    return np.array(rows, np.float64).reshape(len(rows), -1 if rows else 2)


def array_episodes(array: np.ndarray, spec: EnvSpec) -> list[Episode]:
    """The inverse of `episodes_array`."""
    if len(array) and array.shape[1] != 2 + spec.agents + len(spec.metrics):
        raise UserError(
            "The checkpoint is from an earlier version of Shoal, which kept no returns per agent; train the run again."
        )
    end = 2 + spec.agents
    return [
        Episode(row[0], None if np.isnan(row[1]) else row[1], tuple(row[2:end]), tuple(row[end:]))
        for row in array.tolist()
    ]


def refill(training: "Training", folder: RunFolder, observer: Observer, interrupt: Interrupt) -> None:
    """Play as many samples as the warm-up has into the empty ring; they count neither as samples nor as time."""
    warmup = training.config.warmup
    observer.tell(
        f"The run did not keep its replay (`keep_replay`): {counted(warmup, 'sample is', 'samples are')} played with "
        "the present policy before learning continues."
    )
    folder.checkpoints.keep_newest()  # the segments of an older checkpoint do not belong to the new ring
    collector, seen = training.collector, training.collector.state()[0]["observation"]
    episodes, samples = collector.episodes, collector.samples
    training.ring.begin(seen)
    training.clock("other")
    not_counted = PhaseClock()
    observer.advance(training)
    advance = observer.aside("refilling the replay: sample", warmup)
    while collector.samples - samples < warmup and interrupt.signal is None:
        before = collector.samples
        collector.step(not_counted)
        advance(collector.samples - before)
    training.clock.start()
    collector.episodes, collector.samples = episodes, samples
