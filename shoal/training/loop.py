"""The training loop: act, step, insert, and update all agents as often as is owed.

`train` runs a configuration to its end, or until it is asked to stop; the state between any two updates can be saved
and continued to the same bits (same machine, same number of threads).
"""

import dataclasses
import json
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from shoal.algorithms import make_team
from shoal.algorithms.config import option
from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.memory import check_fits, keep_freed_memory
from shoal.replay import Ring, can_sample, make_sampler
from shoal.seeding import stream
from shoal.training.checkpoint import Checkpoint
from shoal.training.clock import PhaseClock
from shoal.training.config import TrainConfig, read_config
from shoal.training.evaluation import Evaluation, build_env, evaluate_team
from shoal.training.interrupt import Interrupt
from shoal.training.returns import Episode, ReturnTracker
from shoal.training.run_folder import MetricsLog, RunFolder, new_folder

LAST_EPISODES = 1_000  # the result's return is the mean over this many last episodes


class Observer(Protocol):
    """Who watches a run: the progress display, or nobody."""

    def begin(self, config: TrainConfig, folder: Path, episode: int) -> None:
        """The run starts, or goes on, at this episode."""

    def tell(self, sentence: str) -> None:
        """Something the user should know."""

    def advance(self, training: "Training") -> None:
        """Called after every step of all copies; cheap unless there is something new to show."""

    def end(self) -> None:
        """Nothing more will come."""


class Silent:
    """An observer that shows nothing."""

    def begin(self, config: TrainConfig, folder: Path, episode: int) -> None:
        """Nothing to show."""

    def tell(self, sentence: str) -> None:
        """Nobody to tell."""

    def advance(self, training: "Training") -> None:
        """Nothing to show."""

    def end(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True)
class TrainResult:
    """What a run came to. Returns are per agent and episode; see docs/returns.md."""

    run: str
    finished: bool
    episodes: int
    env_steps: int
    updates: int
    seconds: float
    steps_per_second: float
    return_mean: float | None
    """Training return (noisy policies), mean over the last 1,000 episodes."""
    return_random: float | None = None
    return_random_ci95: float | None = None
    return_deterministic: float | None = None
    return_deterministic_ci95: float | None = None
    return_noisy: float | None = None
    return_noisy_ci95: float | None = None
    return_prey: float | None = None
    """Where the prey learns: its training return, mean over the last 1,000 episodes."""
    phases: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds of each phase."""
    signal: int | None = None
    """The signal that stopped an unfinished run."""


def train(config: TrainConfig, resume: bool = False, observer: Observer | None = None) -> TrainResult:
    """Train a team into a run folder; with `resume`, go on with the run in `config.out` from its newest checkpoint.

    A resumed run takes its settings from its folder. A finished one is returned as it is.
    """
    observer = observer or Silent()
    if resume:
        if config.out is None:
            raise UserError("--resume needs the run folder to go on with: --out FOLDER --resume, or --resume FOLDER.")
        config = dataclasses.replace(stored_config(config, Path(config.out)), out=config.out)
    config.check()
    if config.threads is not None:
        set_threads(config.threads)
    folder = RunFolder(Path(config.out)) if resume and config.out is not None else RunFolder(new_folder(config))
    if resume and (before := folder.result) is not None:
        observer.tell(f"The run in '{folder.path}' is finished; there is nothing to go on with.")
        return TrainResult(**before)

    training = Training(config)
    folder.lock()
    try:
        return carry_out(training, folder, resume, observer)
    finally:
        folder.unlock()


def carry_out(training: "Training", folder: RunFolder, resume: bool, observer: Observer) -> TrainResult:
    """Begin or go on, to the end or to the first signal; then evaluate what was reached."""
    config = training.config
    with Interrupt() as interrupt:
        checkpoint = folder.checkpoints.load(observer.tell) if resume else None
        if checkpoint is not None:
            training.load(checkpoint)
        elif resume:
            observer.tell(f"'{folder.path}' has no checkpoint yet: starting over.")
        folder.create(config)
        log = MetricsLog(folder.path, config.tensorboard, training.log_bytes, training.episodes)
        observer.begin(config, folder.path, training.episodes)
        if training.most_samples is not None and training.most_samples < config.warmup:
            observer.tell(
                f"Nothing will be learned: the run ends after about {training.most_samples:,} samples, "
                f"before the warm-up of {config.warmup:,}; set --warmup or --episodes."
            )
        try:
            training.run(folder, log, observer, interrupt)
        finally:
            log.close()
            observer.end()
    if interrupt.signal is not None:
        return training.result(folder.path, finished=False, signal=interrupt.signal)
    result = training.result(folder.path, finished=True)
    folder.write("result.json", result_json(result))
    return result


class Training:
    """A run in memory: the world's copies, the team, the ring and all counters."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        keep_freed_memory()
        device = make_device(config.device)
        self.env = build_env(config, config.copies, config.seed, config.stagger)
        spec = self.env.spec
        check_update_memory(config, spec)
        self.team = make_team(spec, config, config.seed, device)
        self.sampler = make_sampler(config.sampler, config.neighbors, config.include_center)
        self.rng = stream(config.seed, "sampling")
        length = spec.episode_length if spec.fixed_length else None
        self.most_samples = None if length is None else (config.episodes + 2 * config.copies) * length
        self.ring = Ring(spec, config.copies, config.capacity, config.storage, self.most_samples)
        self.clock = PhaseClock()
        self.observation = self.env.reset()  # (E, N, O)
        self.ring.begin(self.observation)
        self.returns = ReturnTracker(self.env)
        self.episodes = self.samples = self.updates = 0
        self.logged = self.saved = 0  # episodes, in whole intervals
        self.log_bytes = 0
        self.fresh: list[Episode] = []  # ended since the last line of the log
        self.last: deque[Episode] = deque(maxlen=LAST_EPISODES)
        self.losses: dict[str, torch.Tensor] = {}  # sums since the last line of the log
        self.loss_count = 0

    # ---- the loop --------------------------------------------------------------------------------------------------

    def run(self, folder: RunFolder, log: MetricsLog, observer: Observer, interrupt: Interrupt) -> None:
        """Train until the episodes are done or a signal came; either way the last state is saved."""
        every = self.config.checkpoint_every
        while True:
            while self.owes_update() and interrupt.signal is None:
                self.update()
                observer.advance(self)
            self.clock("other")
            if interrupt.signal is not None:
                break
            if self.episodes // self.config.log_every > self.logged:
                self.write_log(log)
            if self.episodes >= self.config.episodes:
                break
            if every and self.episodes // every > self.saved:
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
        self.samples += self.config.copies
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
        self.logged = self.episodes // self.config.log_every
        seconds = self.clock.total()
        line: dict[str, Any] = {"episode": self.episodes, "env_steps": self.samples, "updates": self.updates}
        line["return_mean"] = mean([episode.team for episode in self.fresh])
        if self.env.spec.team:
            line["return_prey"] = mean([episode.prey for episode in self.fresh if episode.prey is not None])
        line["seconds"] = seconds
        line["steps_per_second"] = self.samples / seconds
        line |= {f"loss/{name}": float(total.mean()) / self.loss_count for name, total in self.losses.items()}
        line |= {f"time/{phase}": passed for phase, passed in self.clock.by_phase().items()}
        self.check_finite(line)
        log.add(line)
        self.log_bytes = log.size
        self.fresh, self.losses, self.loss_count = [], {}, 0

    def check_finite(self, line: dict[str, Any]) -> None:
        """A loss that is not a number ends the run with a sentence; the checkpoint before it stays."""
        for name, value in line.items():
            if name.startswith("loss/") and not np.isfinite(value):
                raise UserError(
                    f"The {name.removeprefix('loss/')} loss is {value} at episode {self.episodes}: "
                    f"training has diverged; a smaller --learning-rate than {self.config.learning_rate} may help."
                )

    def result(self, path: Path, finished: bool, signal: int | None = None) -> TrainResult:
        """The run's figures; a finished one also plays against the random team."""
        seconds = self.clock.total()
        returns = [episode.team for episode in self.last]
        prey = [episode.prey for episode in self.last if episode.prey is not None]
        result = TrainResult(
            run=str(path),
            finished=finished,
            episodes=self.episodes,
            env_steps=self.samples,
            updates=self.updates,
            seconds=seconds,
            steps_per_second=self.samples / seconds,
            return_mean=mean(returns),
            return_prey=mean(prey),
            phases=self.clock.by_phase(),
            signal=signal,
        )
        if not finished or not self.config.evaluate_episodes:
            return result
        played = evaluate_team(self.team, self.config, self.config.evaluate_episodes, self.config.seed + 1)
        return dataclasses.replace(result, **result_fields(played))

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def save(self, folder: RunFolder, log: MetricsLog, with_ring: bool = True) -> None:
        """Everything that decides the future of the run. A finished run needs its ring no more."""
        if self.losses:
            self.check_finite({f"loss/{name}": float(total.mean()) for name, total in self.losses.items()})
        every = self.config.checkpoint_every
        self.saved = self.episodes // every if every else 0
        parts = {
            "weights": as_arrays(self.team.weights()),
            "optimizer": as_arrays(self.team.optimizer_state()),
            "random": as_arrays(self.team.random_state()),
            "environment": self.env.state(),
            "training": {
                "observation": self.observation,
                "fresh": episodes_array(self.fresh),
                "last": episodes_array(self.last),
                **{f"returns.{name}": array for name, array in self.returns.state().items()},
                **{f"losses.{name}": array for name, array in as_arrays(self.losses).items()},
            },
        }
        meta = {
            "episodes": self.episodes,
            "samples": self.samples,
            "updates": self.updates,
            "logged": self.logged,
            "log_bytes": self.log_bytes,
            "loss_count": self.loss_count,
            "sampling": self.rng.bit_generator.state,
            "seconds": self.clock.seconds,
            "threads": torch.get_num_threads(),
        }
        folder.checkpoints.save(self.episodes, parts, meta, self.ring if with_ring else None)

    def load(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        parts, meta = checkpoint.parts, checkpoint.meta
        self.team.load_weights(as_tensors(parts["weights"]))
        self.team.load_optimizer_state(as_tensors(parts["optimizer"]))
        self.team.load_random_state(as_tensors(parts["random"]))
        self.env.load_state(parts["environment"])
        checkpoint.load_ring(self.ring)
        own = parts["training"]
        self.observation = own["observation"]
        self.fresh = array_episodes(own["fresh"])
        self.last.extend(array_episodes(own["last"]))
        self.returns.load_state(with_prefix(own, "returns."))
        self.losses = as_tensors(with_prefix(own, "losses."), self.team.device)
        self.episodes, self.samples, self.updates = meta["episodes"], meta["samples"], meta["updates"]
        self.logged, self.log_bytes, self.loss_count = meta["logged"], meta["log_bytes"], meta["loss_count"]
        every = self.config.checkpoint_every
        self.saved = self.episodes // every if every else 0
        self.rng.bit_generator.state = meta["sampling"]
        self.clock.seconds = dict(meta["seconds"])


# ---- small helpers -------------------------------------------------------------------------------------------------


def stored_config(asked: TrainConfig, folder: Path) -> TrainConfig:
    """The settings of the run in this folder; one that was asked for and differs is refused."""
    stored = read_config(folder)
    for field in dataclasses.fields(TrainConfig):
        value, kept = getattr(asked, field.name), getattr(stored, field.name)
        if field.name != "out" and value not in (kept, field.default):
            raise UserError(
                f"{option(field.name)} is {value}, but the run in '{folder}' has {kept}: "
                "a resumed run keeps its settings."
            )
    return stored


def set_threads(threads: int) -> None:
    """Use this many processor threads in torch and numba alike."""
    import numba

    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, os.cpu_count() or 1))


def make_device(name: str) -> torch.device:
    """The torch device of this name, if it is there and works."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"--device '{name}' cannot be used here ({reason}); 'cpu' always works.") from None
    return device


def check_update_memory(config: TrainConfig, spec: EnvSpec) -> None:
    """Refuse an update that does not fit in memory: weights, targets, gradients and Adam's two moments of the
    critics, and what the mini-batches keep for their gradients."""
    if config.device != "cpu":
        return
    joint = spec.agents * (spec.observation_size + spec.action_size)
    units = spec.agents * (2 if config.algorithm == "masac" else 1) * sum(config.hidden)
    widest = spec.agents * (2 if config.algorithm == "masac" else 1) * config.hidden[0]
    weights = 5 * 4 * joint * widest
    rows = 4 * config.batch * (2 * joint * (1 if config.minibatch == "shared" else spec.agents) + 3 * units)
    check_fits(
        f"An update of {spec.agents} agents",
        weights + rows,
        lambda usable: "train fewer --agents, or with smaller --hidden layers or a smaller --batch",
    )


def mean(values: list[float]) -> float | None:
    """The mean; None of nothing."""
    return float(np.mean(values)) if values else None


def result_fields(played: dict[str, Evaluation]) -> dict[str, Any]:
    """Evaluations as the result's fields: return_random, return_random_ci95, …"""
    fields: dict[str, Any] = {f"return_{name}": evaluation.mean for name, evaluation in played.items()}
    return fields | {f"return_{name}_ci95": evaluation.ci95 for name, evaluation in played.items()}


def result_json(result: TrainResult) -> str:
    """The text of result.json."""
    return json.dumps(dataclasses.asdict(result), indent=2) + "\n"


def as_arrays(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Tensors as numpy arrays on the CPU."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def as_tensors(arrays: dict[str, np.ndarray], device: torch.device | None = None) -> dict[str, torch.Tensor]:
    """Arrays as tensors of their own memory."""
    return {name: torch.from_numpy(np.array(array)).to(device or "cpu") for name, array in arrays.items()}


def with_prefix(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The entries whose name starts with the prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def episodes_array(episodes: list[Episode] | deque[Episode]) -> np.ndarray:
    """(n, 2): team's and prey's returns, NaN where there is no learning prey."""
    rows = [(episode.team, np.nan if episode.prey is None else episode.prey) for episode in episodes]
    return np.array(rows, np.float64).reshape(-1, 2)


def array_episodes(array: np.ndarray) -> list[Episode]:
    """The inverse of `episodes_array`."""
    return [Episode(float(team), None if np.isnan(prey) else float(prey)) for team, prey in array]
