"""The training loop: act, step, insert, and update all agents as often as is owed.

`train` runs a configuration to its end, or until it is asked to stop; the state between any two updates can be saved
and continued to the same bits (same machine, same number of threads).
"""

import dataclasses
import importlib
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch

from shoal.algorithms import make_team
from shoal.algorithms.precision import FULL, Precision
from shoal.envs.base import VectorEnv
from shoal.errors import UserError, counted
from shoal.memory import keep_freed_memory
from shoal.processors import check_threads
from shoal.replay import Ring, Sampler, can_sample, make_sampler
from shoal.seeding import stream
from shoal.training.checkpoint import Checkpoint
from shoal.training.clock import PhaseClock
from shoal.training.config import CONFIG, TrainConfig, read_config
from shoal.training.contention import Contention
from shoal.training.evaluation import PLAYERS, build_env, evaluate_team
from shoal.training.interrupt import Interrupt
from shoal.training.parts import Learner, Replay
from shoal.training.precision import make_precision
from shoal.training.result import TrainResult, result_fields, result_json
from shoal.training.returns import Episode, ReturnTracker
from shoal.training.run_folder import RESULT, LogMark, MetricsLog, RunFolder, check_free, new_run
from shoal.training.setup import (
    check_update_memory,
    compile_loops,
    make_device,
    stored_config,
    told_if_long,
    use_threads,
)
from shoal.training.snapshot import restore, snapshot
from shoal.training.stored import check_settings, check_world, finished_result

IMPLEMENTATIONS = {"engine": "shoal.training.loop:Training", "reference": "shoal.reference.training:ReferenceTraining"}
LAST_EPISODES = 1_000  # the result's return is the mean over this many last episodes


class Observer(Protocol):
    """Who watches a run: the progress display, or nobody."""

    def begin(self, config: TrainConfig, folder: Path, episode: int) -> None:
        """The run starts, or goes on, at this episode."""

    def tell(self, sentence: str) -> None:
        """Something the user should know."""

    def note(self, sentence: str) -> None:
        """Why it takes as long as it does."""

    def advance(self, training: "Training") -> None:
        """Called after every step of all copies and after every update; cheap unless there is something to show."""

    def evaluate(self, episodes: int) -> Callable[[int], None]:
        """Training is over and this many episodes are played; what is returned is told how many more are done."""

    def end(self) -> None:
        """Nothing more will come."""


class Silent:
    """An observer that shows nothing."""

    def begin(self, config: TrainConfig, folder: Path, episode: int) -> None:
        """Nothing to show."""

    def tell(self, sentence: str) -> None:
        """Nobody to tell."""

    def note(self, sentence: str) -> None:
        """Nobody waits."""

    def advance(self, training: "Training") -> None:
        """Nothing to show."""

    def evaluate(self, episodes: int) -> Callable[[int], None]:
        """Nothing to show."""
        return lambda count: None

    def end(self) -> None:
        """Nothing to close."""


def train(
    config: TrainConfig, resume: bool = False, observer: Observer | None = None, trust: bool = False
) -> TrainResult:
    """Train a team into a run folder; with `resume`, go on with the run in `config.out` from its newest checkpoint.

    A resumed run takes its settings from its folder. A finished one is returned as it is. `trust` lets third-party
    code run that the folder names as its environment; one that `config` names is trusted.
    """
    observer = observer or Silent()
    config = config.checked()
    if config.out is not None and not config.out.strip():
        raise UserError("--out is empty, but must be the name of a folder.")
    if not resume:
        if config.out is not None:
            check_free(Path(config.out))  # before anything is built
        training = build(config, observer)
        with new_run(config) as folder:
            return carry_out(training, folder, None, observer)
    if config.out is None:
        raise UserError("--resume needs the run folder to go on with: --out FOLDER --resume, or --resume FOLDER.")
    read_config(Path(config.out))  # it is a run at all
    with RunFolder(Path(config.out)) as folder:
        named = vars(config)
        config = stored_config(config, folder.path)
        checkpoint = folder.checkpoints.load(observer.tell)
        check_settings(config, folder.path, checkpoint)
        check_world(config, folder.path, named, trust)
        if (result := finished_result(folder.path, checkpoint)) is not None:
            tell_log_damage(checkpoint, folder.path, observer)
            observer.tell(f"The run in '{folder.path}' is finished; there is nothing to go on with.")
            return result
        training = build(config, observer)
        if checkpoint is None:
            observer.tell(f"'{folder.path}' has no checkpoint yet: starting over.")
        return carry_out(training, folder, checkpoint, observer)


def tell_log_damage(checkpoint: Checkpoint | None, folder: Path, observer: Observer) -> None:
    """Say so if metrics.jsonl is not as the checkpoint knows it; a run goes on without."""
    if checkpoint is not None and (damage := LogMark(*checkpoint.meta["log"]).damage(folder)):
        observer.tell(damage)


def build(config: TrainConfig, observer: Observer) -> "Training":
    """A run in memory that has not begun; whatever is wrong with its settings is found here."""
    if config.threads is not None:
        check_threads(config.threads)
    with told_if_long(observer.note, "Compiling the loops for this machine; from the next run on they are there."):
        implementation(config.implementation).compile(config)
    return implementation(config.implementation)(config)


def implementation(name: str) -> "type[Training]":
    """The kind of training of this name; named and not imported, because the loop knows nothing of what uses it."""
    module, _, kind = IMPLEMENTATIONS[name].partition(":")
    return cast("type[Training]", getattr(importlib.import_module(module), kind))


def carry_out(
    training: "Training", folder: RunFolder, checkpoint: Checkpoint | None, observer: Observer
) -> TrainResult:
    """Begin or go on, to the end or to the first signal; then evaluate what was reached."""
    config = training.config
    with Interrupt() as interrupt:
        if checkpoint is not None:
            training.load(checkpoint)
            if (before := checkpoint.meta["threads"]) != torch.get_num_threads():
                observer.tell(
                    f"The run was trained with --threads {before}, now it has {torch.get_num_threads()}: "
                    "it goes on, but not to the same bits."
                )
        folder.write(CONFIG, config.to_json())
        tell_log_damage(checkpoint, folder.path, observer)
        log = MetricsLog(folder.path, config.tensorboard, training.log_mark.size, training.episodes)
        training.log_mark = log.mark
        observer.begin(config, folder.path, training.episodes)
        if training.most_samples is not None and training.most_samples < config.warmup:
            observer.tell(
                f"Nothing will be learned: the run ends after about {training.most_samples:,} samples, "
                f"before the warm-up of {config.warmup:,}; set --warmup or --episodes."
            )
        try:
            training.run(folder, log, observer, interrupt)
        except Exception:
            if training.samples == 0:  # its world does not even take a step
                folder.discard(log)
            raise
        finally:
            log.close()
            if interrupt.signal is not None:
                observer.end()
    if interrupt.signal is not None:
        return training.result(folder.path, signal=interrupt.signal)
    try:
        result = training.evaluated(folder.path, observer)
    except KeyboardInterrupt as stop:  # all is trained and saved
        return training.result(folder.path, signal=getattr(stop, "number", int(signal.SIGINT)))
    finally:
        observer.end()
    folder.write(RESULT, result_json(result))
    folder.checkpoints.keep_newest()
    return result


class Training:
    """A run in memory: the world's copies, the team, the ring and all counters."""

    env: VectorEnv
    team: Learner
    ring: Replay
    sampler: Sampler
    precision: Precision = FULL

    def __init__(self, config: TrainConfig) -> None:
        self.config = config = config.resolved()
        keep_freed_memory()
        self.build(make_device(config.device))
        use_threads(self.config, self.env.spec)
        self.rng = stream(config.seed, "sampling")
        self.clock = PhaseClock()
        self.observation = self.env.reset()  # (E, N, O)
        self.ring.begin(self.observation)
        self.returns = ReturnTracker(self.env)
        self.episodes = self.samples = self.updates = 0
        self.logged = self.saved = 0  # the episode of the last line of the log, of the last checkpoint
        self.log_mark = LogMark()
        self.fresh: list[Episode] = []  # ended since the last line of the log
        self.last: deque[Episode] = deque(maxlen=LAST_EPISODES)
        self.losses: dict[str, torch.Tensor] = {}  # sums since the last line of the log
        self.loss_count = 0

    @staticmethod
    def compile(config: TrainConfig) -> None:
        """Have everything compiled that such a run calls."""
        compile_loops(config)

    def build(self, device: torch.device) -> None:
        """The engine's world, team, ring and sampler."""
        config = self.config
        self.env = build_env(config, config.copies, config.seed, config.stagger)
        spec = self.env.spec
        reserved = check_update_memory(config, spec)
        self.sampler = make_sampler(config.sampler, config.neighbors, config.include_center)
        self.ring = Ring(spec, config.copies, config.capacity, config.storage, self.most_samples, reserved)
        if self.sampler.needs > self.ring.capacity_per_copy:
            raise UserError(
                f"--sampler {config.sampler} needs {counted(self.sampler.needs, 'transition')} per copy, but "
                f"--capacity {config.capacity} holds {self.ring.capacity_per_copy} for each of "
                f"{counted(config.copies, 'copy', 'copies')}."
            )
        team = make_team(spec, config, config.seed, device)
        self.precision = make_precision(team, config)
        self.team = team

    @property
    def most_samples(self) -> int | None:
        """More samples than these the run cannot produce; None: nobody knows."""
        length = self.env.spec.episode_length  # nobody plays longer
        return None if length is None else (self.config.episodes + 2 * self.config.copies) * length

    # ---- the loop --------------------------------------------------------------------------------------------------

    def run(self, folder: RunFolder, log: MetricsLog, observer: Observer, interrupt: Interrupt) -> None:
        """Train until the episodes are done or a signal came; either way the last state is saved."""
        self.clock.start()
        every = self.config.checkpoint_every
        contention = Contention()
        while True:
            while self.owes_update() and interrupt.signal is None:
                self.update()
                observer.advance(self)
            self.clock("other")
            if interrupt.signal is not None:
                break
            if self.episodes // self.config.log_every > self.logged // self.config.log_every:
                self.write_log(log)
                if (sentence := contention.sentence(torch.get_num_threads())) is not None:
                    observer.note(sentence)
            if self.episodes >= self.config.episodes:
                break
            if every and self.episodes // every > self.saved // every:
                self.save(folder, log)
            self.step()
            observer.advance(self)
        finished = interrupt.signal is None
        if finished and self.fresh:
            self.write_log(log)
        self.save(folder, log, with_ring=not finished)

    def owes_update(self) -> bool:
        """One update is owed for every `update_every` samples, counted from the first; none before the warm-up."""
        owed = self.samples // self.config.update_every
        return self.samples >= self.config.warmup and self.updates < owed and can_sample(self.ring, self.sampler)

    def step(self) -> None:
        """One step of all copies."""
        self.clock("action selection")
        actions = self.team.act(self.observation)
        if not np.isfinite(actions.sum()):
            raise self.diverged("policy's actions are not numbers")
        self.clock("environment")
        step = self.env.step(self.team.to_world(actions))
        self.clock("replay insertion")
        if not self.env.spec.fixed_length:
            actions = actions * step.alive[..., None]  # who has left plays zeros
        self.ring.add(actions, step)
        self.clock("other")
        ended = self.returns.add(step)
        self.fresh += ended
        self.last.extend(ended)
        self.episodes += len(ended)
        self.precision.progress(self.episodes / self.config.episodes)
        self.samples += self.config.copies
        self.team.progress(self.samples)
        self.observation = step.observation

    def update(self) -> None:
        """Update all agents once."""
        losses = self.team.update(self.ring, self.sampler, self.rng, self.clock)
        self.clock("other")
        self.updates += 1
        self.loss_count += 1
        for name, loss in losses.items():
            self.losses[name] = self.losses[name] + loss if name in self.losses else loss

    # ---- what is written -------------------------------------------------------------------------------------------

    def write_log(self, log: MetricsLog) -> None:
        """One line: the returns of the episodes since the last line, losses, and where the time went."""
        self.logged = self.episodes
        seconds = self.clock.total()
        line: dict[str, Any] = {"episode": self.episodes, "env_steps": self.samples, "updates": self.updates}
        line["return_mean"] = mean([episode.team for episode in self.fresh])
        if self.env.spec.team:
            line["return_prey"] = mean([episode.prey for episode in self.fresh if episode.prey is not None])
        line["seconds"] = seconds
        line["steps_per_second"] = self.samples / seconds
        line |= {f"loss/{name}": None for name in self.team.losses}  # none before the warm-up
        line |= {f"loss/{name}": float(total.mean()) / self.loss_count for name, total in self.losses.items()}
        line |= self.precision.figures()
        line |= {f"time/{phase}": passed for phase, passed in self.clock.by_phase().items()}
        self.check_finite(line)
        log.add(line)
        self.log_mark = log.mark
        self.fresh, self.losses, self.loss_count = [], {}, 0

    def check_finite(self, line: dict[str, Any]) -> None:
        """A loss that is not a number ends the run with a sentence; the checkpoint before it stays."""
        for name, value in line.items():
            if name.startswith("loss/") and value is not None and not np.isfinite(value):
                raise self.diverged(f"{name.removeprefix('loss/')} loss is {value}")

    def diverged(self, how: str) -> UserError:
        """The sentence that ends a run whose numbers went wrong."""
        return UserError(
            f"The {how} at episode {self.episodes}: "
            f"training has diverged; a smaller --learning-rate than {self.config.learning_rate} may help."
        )

    def result(self, path: Path, signal: int | None = None) -> TrainResult:
        """The run's figures so far."""
        seconds = self.clock.total()
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
            phases=self.clock.by_phase(),
            signal=signal,
        )

    def evaluated(self, path: Path, observer: Observer) -> TrainResult:
        """The finished run's figures, those of play against the random team included."""
        result = self.result(path)
        episodes = self.config.evaluate_episodes
        if not episodes:
            return result
        advance = observer.evaluate(len(PLAYERS) * episodes)
        played = evaluate_team(self.team, self.config, episodes, self.config.seed + 1, advance)
        return dataclasses.replace(result, **result_fields(played))

    def save(self, folder: RunFolder, log: MetricsLog, with_ring: bool = True) -> None:
        """A checkpoint; a finished run needs its ring no more."""
        if self.losses:
            self.check_finite({f"loss/{name}": float(total.mean()) for name, total in self.losses.items()})
        log.sync()  # the checkpoint says how long the log is
        parts, meta = snapshot(self)
        folder.checkpoints.save(self.episodes, parts, meta, self.ring if with_ring else None)
        self.saved = self.episodes

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        restore(self, checkpoint)
        self.saved = self.episodes


def mean(values: list[float]) -> float | None:
    """The mean; None of nothing."""
    return float(np.mean(values)) if values else None
