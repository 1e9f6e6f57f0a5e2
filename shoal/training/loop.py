"""The training loop: a collector steps the world, a learner updates all agents as often as is due.

`train` runs a configuration to its end or until it is interrupted; the state between any two updates can be saved
and resumed with bit-identical results (same machine; with torch also the same number of threads).
"""

import importlib
import signal
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from shoal.algorithms.config import as_declared
from shoal.envs.base import VectorEnv
from shoal.errors import ActorsLost, Diverged, UserError, counted
from shoal.runs import disk
from shoal.runs.checkpoint import Checkpoint
from shoal.runs.interrupt import Interrupt
from shoal.system.files import absolute, working_directory
from shoal.system.memory import keep_freed_memory
from shoal.system.processors import check_threads
from shoal.training.callbacks import Callback, Hooks, Run, check_callbacks
from shoal.training.clock import PhaseClock
from shoal.training.collector import Collector
from shoal.training.config import CONFIG, TrainConfig, read_config
from shoal.training.contention import Contention
from shoal.training.diverged import remedy
from shoal.training.early import CURVE, check_new, check_workers, check_world, run_to_resume
from shoal.training.evaluation import PLAYERS, evaluate_team
from shoal.training.extend import asked_settings, changed_config, extends, needs_refill, refill
from shoal.training.learner import Learner
from shoal.training.milestones import Abandoned, Milestones, evaluation_figures
from shoal.training.observer import Observer, Silent
from shoal.training.parts import Collecting, Implementation, LearningTeam, Replay
from shoal.training.play import Evaluation
from shoal.training.result import TrainResult, result_json, training_means
from shoal.training.returns import Columns, Episode
from shoal.training.run_folder import RESULT, LogMark, MetricsLog, RunFolder, new_run
from shoal.training.setup import stored_config, told_if_long, use_threads
from shoal.training.snapshot import restore, snapshot
from shoal.training.stall import StallWatch
from shoal.training.stored import check_settings, finished_result
from shoal.training.warmup import WarmUp
from shoal.training.world_file import WORLD, world_json
from shoal.waiting import said_if_long

IMPLEMENTATIONS = {
    "engine": "shoal.training.engine",
    "reference": "shoal_papers.reference.training",
    "actors": "shoal.actorq.training",
}
"""Modules that build the parts of a run; named, not imported, because the loop does not depend on them."""
LAST_EPISODES = 1_000  # the result's return is the mean over the last this many episodes


def train(
    config: TrainConfig,
    resume: bool = False,
    observer: Observer | None = None,
    trust: bool = False,
    callbacks: Sequence[Callback] = (),
    asked: Collection[str] | None = None,
) -> TrainResult:
    """Train a team in a run folder; with `resume`, continue the run in `config.out` from its newest checkpoint.

    A resumed run takes its settings from its folder, except for more `episodes`, which extend it, and other evaluations
    and snapshots. A finished one that is not extended is returned unchanged.

    Args:
        config: All settings.
        resume: Continue the run in `config.out`.
        observer: Shows progress; None: nothing is shown.
        trust: Allow third-party code that the folder names as its environment; one that `config` names is trusted.
        callbacks: Called after episodes, updates, evaluations and checkpoints; they may stop the run.
        asked: With `resume`: names of the settings in `config` that count; None: those that differ from their defaults.

    """
    observer = observer or Silent()
    check_callbacks(callbacks)
    config = as_declared(config) if resume else config.checked()  # those of a resume are checked with the run's
    if config.out is not None and not config.out.strip():
        raise UserError("--out is empty, but must be the name of a folder.")
    if not resume:
        check_new(config)  # before anything is built
        start = working_directory()  # building a world may change it
        training = build(config, observer)
        with new_run(config, start) as folder:
            folder.write(CONFIG, training.config.to_json())  # the first file: a run killed from now on can be resumed
            return carry_out(training, folder, None, observer, callbacks)
    out = absolute(run_to_resume(config.out))
    read_config(out)  # check that it is a run at all
    with RunFolder(out) as folder:
        named = asked_settings(config, asked)
        config = stored_config(named, folder.path)
        with said_if_long(observer.note, "Checking the checkpoints."):
            checkpoint = folder.checkpoints.load(observer.tell)
        check_settings(config, folder.path, checkpoint)
        check_world(config, folder.path, named, trust)
        config = changed_config(config, named, checkpoint, folder.path)
        result = finished_result(folder.path, checkpoint)
        if result is not None and not (checkpoint is not None and extends(config, checkpoint)):
            folder.checkpoints.keep_newest()  # it may have been killed before it could
            tell_log_damage(checkpoint, folder.path, observer)
            observer.tell(f"The run in '{folder.path}' is finished; there is nothing to resume.")
            return result
        training = build(config, observer)
        if checkpoint is None:
            observer.tell(f"'{folder.path}' has no checkpoint yet: starting over.")
        return carry_out(training, folder, checkpoint, observer, callbacks)


def tell_log_damage(checkpoint: Checkpoint | None, folder: Path, observer: Observer) -> None:
    """Warn if metrics.jsonl does not match the checkpoint; the run continues anyway."""
    if checkpoint is not None and (damage := LogMark(*checkpoint.meta["log"]).damage(folder)):
        observer.tell(damage)


def build(config: TrainConfig, observer: Observer) -> "Training":
    """A run in memory that has not started; invalid settings are detected here."""
    if config.threads is not None:
        check_threads(config.threads)
    check_workers(config)
    with told_if_long(observer.note):
        implementation(config).compile_loops(config)
    with said_if_long(observer.note, f"Building {counted(config.copies, 'copy', 'copies')} of {config.env}."):
        return Training(config)


def implementation(config: TrainConfig) -> Implementation:
    """The builder of such a run."""
    name = "actors" if config.actors else config.implementation
    return cast(Implementation, importlib.import_module(IMPLEMENTATIONS[name]))


def carry_out(
    training: "Training",
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    observer: Observer,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:
    """Start or resume, run to the end or to the first signal, then evaluate."""
    config = training.config
    training.hooks = Hooks(callbacks, Run(training, folder.path))
    with Interrupt(observer.tell) as interrupt:
        if checkpoint is not None:
            with said_if_long(observer.note, "Loading the checkpoint and its replay."):
                missing = training.load(checkpoint)
            if missing:
                folder.checkpoints.write_whole_ring()
                observer.tell(
                    f"An earlier version of Shoal did not save what followed {counted(missing, 'transition')}: the "
                    "replay ring continues without them."
                )
            if config.update != "native" and (before := checkpoint.meta["threads"]) != training.threads:
                observer.tell(
                    f"The run was trained with --threads {before}, now it has {training.threads}: "
                    "results will not be bit-identical."
                )
        tell_log_damage(checkpoint, folder.path, observer)
        log = MetricsLog(folder.path, config.tensorboard, training.log_mark.size, settings=config.settings)
        training.log_mark = log.mark
        training.milestones.begin(folder.path, observer.tell)
        for name in (RESULT, CURVE):  # of a run that is extended; before its new length is known
            disk.delete(folder.path / name)
        folder.write(CONFIG, config.to_json())
        folder.write(WORLD, world_json(config, training.env.spec, folder.path))
        observer.begin(config, folder.path, training.episodes)
        if training.note:
            observer.note(training.note)
        if not training.updates and (sentence := training.warm_up.before()) is not None:
            observer.tell(sentence)
        try:
            with StallWatch(training, observer.tell, interrupt):
                training.run(folder, log, observer, interrupt)
            if said := training.collector.summary():
                observer.note(said)
        except Exception:
            if training.samples == 0:  # not even one step is possible
                folder.discard(log)
            raise
        finally:
            training.collector.close()
            training.milestones.close()
            log.close()
            if interrupt.signal is not None:
                observer.end()
    if interrupt.signal is not None:
        return training.result(folder.path, signal=interrupt.signal)
    try:
        result = training.evaluated(folder.path, observer)
    except KeyboardInterrupt as stop:  # everything is trained and saved
        return training.result(folder.path, signal=getattr(stop, "number", int(signal.SIGINT)))
    finally:
        observer.end()
    folder.write(RESULT, result_json(result))
    folder.checkpoints.keep_newest()
    return result


class Training:
    """A run in memory: a collector and a learner on the same ring, a clock, and the state of logs and checkpoints."""

    def __init__(self, config: TrainConfig) -> None:
        keep_freed_memory()
        parts = implementation(config).build_parts(config)
        self.config, self.note = parts.config, parts.note
        self.threads = use_threads(self.config, parts.env.spec)
        self.learner = parts.learner or Learner(parts)
        self.collector: Collecting = parts.collector or Collector(parts.env, parts.team, parts.ring)
        self.clock = PhaseClock()
        self.milestones = Milestones(self.config)
        self.hooks = Hooks()
        self.warm_up = WarmUp(self.config, parts.env.spec)
        self.ring_is_gone = False  # the run was finished before, without --keep-replay
        self.stopped: str | None = None  # why the run ends before its last episode
        self.logged = self.saved = 0  # episodes of the last log line and of the last checkpoint
        self.log_mark = LogMark()
        self.fresh: list[Episode] = []  # finished since the last log line
        self.last: deque[Episode] = deque(maxlen=LAST_EPISODES)

    @property
    def env(self) -> VectorEnv:
        """The world's copies."""
        return self.collector.env

    @property
    def team(self) -> LearningTeam:
        """The team that acts and learns."""
        return self.learner.team

    @property
    def ring(self) -> Replay:
        """The replay ring."""
        return self.learner.ring

    @property
    def episodes(self) -> int:
        """Finished episodes so far."""
        return self.collector.episodes

    @property
    def samples(self) -> int:
        """Steps of single copies so far."""
        return self.collector.samples

    @property
    def updates(self) -> int:
        """Updates of all agents so far."""
        return self.learner.updates

    # ---- the loop --------------------------------------------------------------------------------------------------

    def run(self, folder: RunFolder, log: MetricsLog, observer: Observer, interrupt: Interrupt) -> None:
        """Train until all episodes are done or a signal arrives; either way the last state is saved."""
        try:
            self._run(folder, log, observer, interrupt)
        except Diverged as how:  # the previous checkpoint stays
            raise UserError(f"{how} at episode {self.episodes}: training has diverged; {remedy(self)}.") from None

    def _run(self, folder: RunFolder, log: MetricsLog, observer: Observer, interrupt: Interrupt) -> None:
        self.learner.publish()
        self.collector.begin()
        self.clock.start()
        self.hooks("on_begin")
        if needs_refill(self):
            refill(self, folder, observer, interrupt)
            if interrupt.signal is not None:
                return  # the last checkpoint stays
        every, log_every = self.config.checkpoint_every, self.config.log_every
        contention = Contention()
        while True:
            while self.owes_update() and interrupt.signal is None and self.stopped is None:
                self.update()
                if self.hooks.update:
                    self.hooks("on_update")
                observer.advance(self)
            self.clock("other")
            if interrupt.signal is not None:
                break
            evaluation = None
            if self.milestones.due(self.episodes):
                try:
                    evaluation = self.milestones.reach(self, folder.path, interrupt, observer)
                except Abandoned:
                    break
                if evaluation is not None:
                    self.hooks("on_evaluation", evaluation)
            if evaluation is not None or self.episodes // log_every > self.logged // log_every:
                self.write_log(log, evaluation)
                if (sentence := contention.sentence(self.threads)) is not None:
                    observer.note(sentence)
            if self.episodes >= self.config.episodes or self.stopped is not None:
                break
            if every and self.episodes // every > self.saved // every:
                with said_if_long(observer.note, f"Writing the checkpoint of episode {self.episodes:,}."):
                    self.save(folder, log)
            try:
                ended = self.step()
            except ActorsLost:  # where everybody gets the signal that asks the run to stop, they may be gone first
                if not interrupt.asked:
                    raise
                break
            if ended:
                self.hooks("on_episodes", ended)
                if not self.updates and (sentence := self.warm_up.so_far(self.episodes, self.samples)) is not None:
                    observer.tell(sentence)
            observer.advance(self)
        finished = interrupt.signal is None
        if finished and self.fresh:
            self.write_log(log)
        with said_if_long(observer.note, f"Writing the checkpoint of episode {self.episodes:,}."):
            self.save(folder, log, with_ring=not finished or self.config.keep_replay)

    def stop(self, reason: str) -> None:
        """End the run after what is being done now, as finished, unless it ends anyway."""
        if self.episodes < self.config.episodes:
            self.stopped = self.stopped or reason

    def owes_update(self) -> bool:
        """Whether the learner is behind the collector."""
        return self.learner.owes_update(self.samples)

    def step(self) -> list[Episode]:
        """One step of all copies; returns the episodes that ended."""
        ended = self.collector.step(self.clock)
        self.fresh += ended
        self.last.extend(ended)
        self.learner.team.progress(self.samples)
        self.learner.precision.progress(self.episodes / self.config.episodes)
        return ended

    def update(self) -> None:
        """Update all agents once."""
        self.learner.update(self.clock)

    # ---- what is written -------------------------------------------------------------------------------------------

    def write_log(self, log: MetricsLog, evaluation: Evaluation | None = None) -> None:
        """Log one line: returns of the episodes since the last line, an evaluation, losses, and time per phase."""
        self.logged = self.episodes
        phases = self.clock.by_phase()
        seconds = sum(phases.values())
        line: dict[str, Any] = {"episode": self.episodes, "env_steps": self.samples, "updates": self.updates}
        line["return_mean"] = mean([episode.team for episode in self.fresh])
        if self.env.spec.team:
            line["return_prey"] = mean([episode.prey for episode in self.fresh if episode.prey is not None])
        line |= Columns.of(self.env.spec, self.fresh).line()
        if evaluation is not None:
            line |= evaluation_figures(evaluation)
        line["seconds"] = seconds
        line["steps_per_second"] = self.samples / seconds
        line |= {f"loss/{name}": None for name in self.team.losses}  # none before the warm-up
        line |= {f"loss/{name}": loss for name, loss in self.learner.mean_losses().items()}
        line |= self.learner.precision.metrics() | self.collector.metrics()
        line |= {f"time/{phase}": passed for phase, passed in phases.items()}
        self.hooks.add_to(line)
        log.add(line)
        self.log_mark = log.mark
        self.fresh = []
        self.learner.forget_losses()

    def result(self, path: Path, signal: int | None = None) -> TrainResult:
        """The run's results so far."""
        phases = self.clock.by_phase()
        seconds = sum(phases.values())  # of the same moment
        return TrainResult(
            run=str(path),
            finished=signal is None,
            episodes=self.episodes,
            env_steps=self.samples,
            updates=self.updates,
            seconds=seconds,
            steps_per_second=self.samples / seconds,
            return_mean=mean([episode.team for episode in self.last]),
            return_prey=mean([episode.prey for episode in self.last if episode.prey is not None]),
            **training_means(Columns.of(self.env.spec, self.last)),
            phases=phases,
            stopped=self.stopped,
            signal=signal,
        )

    def evaluated(self, path: Path, observer: Observer) -> TrainResult:
        """The finished run's results, including the evaluations."""
        result = self.result(path)
        episodes = self.config.evaluate_episodes
        if not episodes:
            return result
        advance = observer.evaluate(len(PLAYERS) * episodes)
        played = evaluate_team(self.team, self.config, episodes, self.config.seed + 1, advance)
        return result.with_evaluations(played)

    def save(self, folder: RunFolder, log: MetricsLog, with_ring: bool = True) -> None:
        """Save a checkpoint; a finished run no longer needs its ring."""
        self.learner.mean_losses()  # never save diverged weights
        log.sync()  # the checkpoint records the log's length
        parts, meta = snapshot(self)
        path = folder.checkpoints.save(self.episodes, parts, meta, self.ring if with_ring else None)
        self.saved = self.episodes
        self.hooks("on_checkpoint", path)

    def load(self, checkpoint: Checkpoint) -> int:
        """Continue from a checkpoint; returns how many transitions of its ring are missing."""
        missing = restore(self, checkpoint)
        self.saved = self.episodes
        return missing


def mean(values: list[float]) -> float | None:
    """The mean; None of an empty list."""
    return float(np.mean(values)) if values else None
