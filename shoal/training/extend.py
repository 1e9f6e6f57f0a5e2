"""Continuing a run with some settings changed: more episodes than before, other evaluations.

A finished run that kept its ring continues exactly as if it had been longer from the start. Otherwise the ring is
refilled with the present policy first, as it was filled before the first update.
"""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import UserError, counted
from shoal.runs.checkpoint import Checkpoint
from shoal.runs.interrupt import Interrupt
from shoal.training.clock import PhaseClock
from shoal.training.config import TrainConfig
from shoal.training.observer import Observer
from shoal.training.run_folder import RunFolder

if TYPE_CHECKING:
    from shoal.training.loop import Training


def asked_settings(config: TrainConfig, names: Collection[str] | None) -> dict[str, Any]:
    """The settings that were asked for: those of these names; None: all that differ from their defaults."""
    if isinstance(names, str):
        raise UserError(f"asked must be a list of settings, but is '{names}'; write asked=['{names}'].")
    if names is None:
        own = TrainConfig(algorithm=config.algorithm)
        default = replace(own, algorithm=TrainConfig.algorithm)
        names = [name for name, value in vars(config).items() if value != getattr(default, name)]
    for name in names:
        if not hasattr(config, name):
            raise UserError(f"asked has '{name}', which is not a setting of TrainConfig.")
    return {name: getattr(config, name) for name in names}


def changed_config(
    stored: TrainConfig, asked: dict[str, Any], checkpoint: Checkpoint | None, folder: Path
) -> TrainConfig:
    """The run's settings with the changes that were asked for; too few episodes are refused."""
    config = replace(stored, **{name: asked[name] for name in stored.changeable if name in asked}).checked()
    config.check_evaluated(asked)
    done = 0 if checkpoint is None else checkpoint.meta["episodes"]
    if config.episodes != stored.episodes and config.episodes < done:
        raise UserError(
            f"--episodes is {config.episodes:,}, but the run in '{folder}' has already had {counted(done, 'episode')}: "
            "it is the new total."
        )
    if checkpoint is not None and extends(config, checkpoint) and config.actors and "replay" not in checkpoint.parts:
        raise UserError(
            f"The run in '{folder}' had --actors but not --keep-replay: its ring is gone, and it cannot be extended."
        )
    return config


def extends(config: TrainConfig, checkpoint: Checkpoint) -> bool:
    """Whether these settings let the run of a checkpoint go on that was finished with the settings it had."""
    before, meta = checkpoint.meta["settings"], checkpoint.meta
    over = meta["episodes"] >= before["episodes"] or meta.get("stopped") is not None
    new = {name: getattr(config, name) for name in ("episodes", "stop_at_return")}
    return over and config.episodes > meta["episodes"] and any(before.get(name) != new[name] for name in new)


def needs_refill(training: "Training") -> bool:
    """Whether a run goes on to learn with an empty ring."""
    return training.ring_is_gone and training.stopped is None and training.episodes < training.config.episodes


def refill(training: "Training", folder: RunFolder, observer: Observer, interrupt: Interrupt) -> None:
    """Play as many samples as the warm-up has into the empty ring; they count neither as samples nor as time."""
    warmup = training.config.warmup
    observer.tell(
        f"The run did not keep its replay (--keep-replay): {counted(warmup, 'sample is', 'samples are')} played with "
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
