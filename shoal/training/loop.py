"""The training loop: a collector steps the world, a learner updates all agents as often as is due.

`Training` is a run in memory, whose state between any two updates can be saved and resumed with bit-identical results
(same machine; with torch also the same number of threads). `TeamRun` trains it in a run folder.
"""

import importlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from shoal.algorithms.base import BaseTeam
from shoal.errors import ActorsLost, Diverged, UserError, counted
from shoal.runs import disk
from shoal.runs.checkpoint import Checkpoint
from shoal.runs.folder import CURVE, DIAGNOSIS, RunFolder
from shoal.runs.interrupt import Interrupt
from shoal.runs.metrics import LogMark, MetricsLog
from shoal.runs.observer import Observer
from shoal.system.processes import keep_freed_memory
from shoal.training.builder import Implementation
from shoal.training.callbacks import Callback, Hooks, Run
from shoal.training.clock import PhaseClock
from shoal.training.collector import Collecting, Collector
from shoal.training.config import TrainConfig
from shoal.training.evaluation import PLAYERS, Evaluation, evaluate_team
from shoal.training.learner import Learner
from shoal.training.milestones import Abandoned, Milestones
from shoal.training.prechecks import check_hardware
from shoal.training.resources import use_threads
from shoal.training.result import TrainResult, log_line, result_so_far
from shoal.training.resume import refill, restore, snapshot
from shoal.training.returns import Episode
from shoal.training.watchers import (
    CompilationReport,
    Contention,
    StallWatch,
    WarmUp,
    entropy_of_masked,
    nothing_shared,
    remedy,
)
from shoal.training.world_file import WORLD, check_masks, stored_spec, world_json
from shoal.waiting import said_if_long

IMPLEMENTATIONS = {
    "engine": "shoal.training.builder",
    "reference": "shoal_papers.reference.training",
    "actors": "shoal.actorq.training",
}
"""Modules that build the parts of a run; named, not imported, because the loop does not depend on them."""
LAST_EPISODES = 1_000  # the result's return is the mean over the last this many episodes


def implementation(config: TrainConfig) -> Implementation:
    """The builder of such a run."""
    name = "actors" if config.actors else config.implementation
    return cast(Implementation, importlib.import_module(IMPLEMENTATIONS[name]))


def build(config: TrainConfig, observer: Observer, callbacks: Sequence[Callback] = ()) -> "TeamRun":
    """A run in memory that has not started; invalid settings are detected here."""
    check_hardware(config)  # of a resumed run, too, which may have changed
    with CompilationReport(observer.note):
        implementation(config).compile_loops(config)
    with said_if_long(observer.note, f"Building {counted(config.copies, 'copy', 'copies')} of {config.env}."):
        return TeamRun(Training(config), observer, callbacks)


class Training:
    """A run in memory: a collector and a learner on the same ring, a clock, and counters."""

    counter = "episode"

    def __init__(self, config: TrainConfig) -> None:
        keep_freed_memory()
        parts = implementation(config).build_parts(config)
        self.config, self.note = parts.config, parts.note
        self.threads = use_threads(self.config, parts.env.spec)
        self.learner = parts.learner or Learner(parts)
        self.collector: Collecting = parts.collector or Collector(
            parts.env, parts.team, parts.ring, parts.team.normalisation
        )
        self.env, self.ring = parts.env, parts.ring
        self.total = self.config.episodes
        self.clock = PhaseClock()
        self.milestones = Milestones(self.config)
        self.ring_is_gone = False  # the run was finished before, without `keep_replay`
        self.stopped: str | None = None  # why the run ends before its last episode
        self.logged = self.saved = 0  # episodes of the last log line and of the last checkpoint
        self.log_mark = LogMark()
        self.fresh: list[Episode] = []  # finished since the last log line
        self.last: deque[Episode] = deque(maxlen=LAST_EPISODES)

    @property
    def team(self) -> BaseTeam:
        """The team that acts and learns."""
        return self.learner.team

    @property
    def episodes(self) -> int:
        """Finished episodes so far."""
        return self.collector.episodes

    @property
    def done(self) -> int:
        """The same, as observers of any run know it."""
        return self.collector.episodes

    @property
    def samples(self) -> int:
        """Steps of single copies so far."""
        return self.collector.samples

    @property
    def updates(self) -> int:
        """Updates of all agents so far."""
        return self.learner.updates

    def owes_update(self) -> bool:
        """Whether the learner is behind the collector."""
        return self.learner.owes_update(self.samples)

    def step(self) -> list[Episode]:
        """One step of all copies; returns the episodes that ended."""
        ended = self.collector.step(self.clock)
        self.fresh += ended
        self.last.extend(ended)
        self.progress()
        self.learner.precision.progress(self.episodes / self.config.episodes)
        return ended

    def progress(self) -> None:
        """Advance the team's schedules."""
        self.team.progress(self.samples, self.episodes / self.config.episodes)

    def update(self) -> None:
        """Update all agents once."""
        self.learner.update(self.clock)

    def stop(self, reason: str) -> None:
        """End the run after what is being done now, as finished, unless it ends anyway."""
        if self.episodes < self.config.episodes:
            self.stopped = self.stopped or reason


class TeamRun:
    """The training of a team in a run folder, as `shoal.runs.lifecycle` carries it out."""

    counter = "episode"
    complete = False  # the evaluation comes last; a signal before it ends the run

    def __init__(self, training: Training, observer: Observer, callbacks: Sequence[Callback] = ()) -> None:
        self.training, self.observer, self._callbacks = training, observer, callbacks
        self.config = training.config
        self.threads = None if self.config.update == "native" else training.threads
        self._hooks = Hooks()
        self._warm_up = WarmUp(training.config, training.env.spec)

    @property
    def log_mark(self) -> LogMark:
        return self.training.log_mark

    @property
    def started(self) -> bool:
        return self.training.samples > 0

    def load(self, checkpoint: Checkpoint, folder: RunFolder) -> None:
        if missing := restore(self.training, checkpoint):
            folder.checkpoints.write_whole_ring()
            self.observer.tell(
                f"An earlier version of Shoal did not save what followed {counted(missing, 'transition')}: the "
                "replay ring continues without them."
            )

    # ---- the loop --------------------------------------------------------------------------------------------------

    def run(self, folder: RunFolder, log: MetricsLog, interrupt: Interrupt) -> None:
        """Train until all episodes are done or a signal arrives; either way the last state is saved."""
        training, observer = self.training, self.observer
        self._begin(folder, log)
        try:
            with StallWatch(training, observer.tell, interrupt):
                self._learn(folder, log, interrupt)
        except Diverged as problem:  # the previous checkpoint stays
            raise UserError(
                f"{problem} at episode {training.episodes}: training has diverged; {remedy(training)}."
            ) from None
        if summary := training.collector.summary():
            observer.note(summary)

    def _begin(self, folder: RunFolder, log: MetricsLog) -> None:
        training, observer = self.training, self.observer
        if (trained := stored_spec(self.config, folder.path, observer.tell)) is not None:
            check_masks(trained, training.env.spec, folder.path)
        training.log_mark, self._contention = log.mark, Contention()
        training.milestones.begin(folder.path, observer.tell)
        for picture in (CURVE, DIAGNOSIS):  # of a run that is extended
            disk.delete(folder.path / picture)
        folder.write(WORLD, world_json(self.config, training.env.spec, folder.path))
        self._hooks = Hooks(self._callbacks, Run(training, folder.path))
        observer.begin(training, folder.path)
        if training.note:
            observer.note(training.note)
        if not training.updates:
            given = self.config, training.env.spec
            for sentence in (nothing_shared(*given), entropy_of_masked(*given), self._warm_up.before()):
                if sentence is not None:
                    observer.tell(sentence)

    def _learn(self, folder: RunFolder, log: MetricsLog, interrupt: Interrupt) -> None:
        training, observer = self.training, self.observer
        training.learner.publish()
        training.collector.begin()
        self._hooks("on_begin")
        training.clock.start()
        if training.ring_is_gone and training.stopped is None and training.episodes < self.config.episodes:
            refill(training, folder, observer, interrupt)
            if interrupt.signal is not None:
                return  # the last checkpoint stays
        while True:
            self._update(interrupt)
            if interrupt.signal is not None:
                break
            try:
                evaluation = training.milestones.reach(training, folder.path, interrupt, observer)
            except Abandoned:
                break
            if evaluation is not None:
                self._hooks("on_evaluation", evaluation)
            if evaluation is not None or crossed(training.logged, training.episodes, self.config.log_every):
                self._write_log(log, evaluation)
                if (sentence := self._contention.sentence(training.threads)) is not None:
                    observer.note(sentence)
            if training.episodes >= self.config.episodes or training.stopped is not None:
                break
            if crossed(training.saved, training.episodes, self.config.checkpoint_every):
                self._save(folder, log)
            try:
                self._step()
            except ActorsLost:  # where everybody gets the signal that asks the run to stop, they may be gone first
                if not interrupt.asked:
                    raise
                break
        finished = interrupt.signal is None
        if finished and training.fresh:
            self._write_log(log)
        self._save(folder, log, with_ring=not finished or self.config.keep_replay)

    def _step(self) -> None:
        training = self.training
        if ended := training.step():
            self._hooks("on_episodes", ended)
            if not training.updates:
                sentence = self._warm_up.so_far(training.episodes, training.samples)
                if sentence is not None:
                    self.observer.tell(sentence)
        self.observer.advance(training)

    def _update(self, interrupt: Interrupt) -> None:
        training = self.training
        while training.owes_update() and interrupt.signal is None and training.stopped is None:
            training.update()
            self._hooks("on_update")
            self.observer.advance(training)
        training.clock("other")

    # ---- what is written -------------------------------------------------------------------------------------------

    def _write_log(self, log: MetricsLog, evaluation: Evaluation | None = None) -> None:
        training = self.training
        line = log_line(training, evaluation)
        self._hooks.add_to(line)
        log.add(line)
        training.log_mark, training.logged = log.mark, training.episodes
        training.fresh = []
        training.learner.forget_losses()

    def _save(self, folder: RunFolder, log: MetricsLog, with_ring: bool = True) -> None:
        """Save a checkpoint; a finished run no longer needs its ring."""
        training = self.training
        with said_if_long(self.observer.note, f"Writing the checkpoint of episode {training.episodes:,}."):
            training.learner.mean_losses()  # never save diverged weights
            log.sync()  # the checkpoint records the log's length
            parts, meta = snapshot(training)
            ring = training.ring if with_ring else None
            path = folder.checkpoints.save(training.episodes, parts, meta, ring)
            training.saved = training.episodes
            self._hooks("on_checkpoint", path)

    def close(self) -> None:
        """Close the worlds: their copies may be other processes."""
        self.training.collector.close()
        self.training.milestones.close()

    def result(self, path: Path, signal: int | None = None) -> TrainResult:
        return result_so_far(self.training, path, signal)

    def finished(self, path: Path) -> TrainResult:
        """The finished run's results, including the evaluations."""
        result, episodes = self.result(path), self.config.evaluate_episodes
        if not episodes:
            return result
        advance = self.observer.evaluate(len(PLAYERS) * episodes)
        return result.with_evaluations(
            evaluate_team(self.training.team, self.config, episodes, self.config.seed + 1, advance)
        )


def crossed(before: int, now: int, every: int) -> bool:
    """Whether a multiple of `every` was reached since `before`; with 0 never."""
    return every > 0 and now // every > before // every
