"""Callbacks: user code that a run calls after episodes, updates, evaluations, log lines and checkpoints."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.errors import UserError
from shoal.training.config import TrainConfig
from shoal.training.evaluation import Evaluation
from shoal.training.returns import Episode

if TYPE_CHECKING:
    from shoal.training.loop import Training


class Run:
    """A run as its callbacks see it."""

    def __init__(self, training: "Training", folder: Path) -> None:
        self._training = training
        self.folder = folder
        """The run folder."""

    @property
    def config(self) -> TrainConfig:
        """All settings."""
        return self._training.config

    @property
    def episodes(self) -> int:
        """Finished episodes so far, those before a resume included."""
        return self._training.episodes

    @property
    def env_steps(self) -> int:
        """Steps of single copies so far."""
        return self._training.samples

    @property
    def updates(self) -> int:
        """Updates of all agents so far."""
        return self._training.updates

    @property
    def best_return(self) -> float | None:
        """The best evaluation so far; None before the first."""
        return self._training.milestones.best

    def act(self, observation: ArrayLike) -> NDArray[np.float32]:
        """The team's most likely actions (E, N, A) for observations (E, N, O); changes nothing in the run."""
        seen, spec = np.asarray(observation, np.float32), self._training.env.spec
        if seen.ndim != 3 or seen.shape[1:] != (spec.agents, spec.observation_size):
            raise UserError(
                f"The observation has the shape {seen.shape}, but the team takes "
                f"(copies, {spec.agents}, {spec.observation_size})."
            )
        return self._training.team.to_world(self._training.team.act(seen, explore=False))

    def stop(self, reason: str = "a callback stopped the run") -> None:
        """End the run, which is then finished; `result.stopped` and result.json have the reason."""
        if not isinstance(reason, str) or not reason:
            raise UserError(f"run.stop takes the reason as a text, but was given {reason!r:.80}.")
        self._training.stop(reason)


class Callback:
    """Override what you need; `run.stop()` ends the run from any of them.

    Callbacks run between two steps of the loop: their time counts as the phase "other", and what they raise ends the
    training, which can be resumed from its last checkpoint.
    """

    def on_begin(self, run: Run) -> None:
        """The run starts, or resumes at `run.episodes`."""

    def on_episodes(self, run: Run, episodes: Sequence[Episode]) -> None:
        """These episodes have ended: `team` and `prey` are returns per agent, `agents` each agent's."""

    def on_update(self, run: Run) -> None:
        """All agents were updated once."""

    def on_evaluation(self, run: Run, evaluation: Evaluation) -> None:
        """The team was evaluated (`evaluate_every`): `mean`, `ci95`; by name `agents`, `groups` and `figures`."""

    def on_log(self, run: Run, line: dict[str, Any]) -> None:
        """A line is about to be written to metrics.jsonl and TensorBoard; numbers may be added to it."""

    def on_checkpoint(self, run: Run, path: Path) -> None:
        """A checkpoint was written into this folder, which a later one replaces."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class Hooks:
    """The overridden methods of a run's callbacks, by name: what nobody overrides costs an empty loop."""

    def __init__(self, callbacks: Sequence[Callback] = (), run: Run | None = None) -> None:
        self._run = run
        methods = {hook: [getattr(callback, hook) for callback in callbacks] for hook in HOOKS}
        self._methods: dict[str, list[Callable[..., None]]] = {  # overridden in the class, or set on the object
            hook: [method for method in own if getattr(method, "__func__", None) is not getattr(Callback, hook)]
            for hook, own in methods.items()
        }

    def __call__(self, hook: str, *arguments: Any) -> None:
        for method in self._methods[hook]:
            method(self._run, *arguments)

    def add_to(self, line: dict[str, Any]) -> None:
        """Let callbacks add numbers to a log line; those of numpy and torch become Python's."""
        if not self._methods["on_log"]:
            return
        before = dict(line)
        self("on_log", line)
        for name, value in line.items():
            if name in before:
                if value is not before[name]:
                    raise UserError(f"A callback has changed '{name}' in a line of the log; use a name of its own.")
                continue
            number = plain(value)
            if not isinstance(name, str) or not _can_be_logged(number):
                raise UserError(
                    f"A callback has added {value!r:.80} to the log as {name!r:.80}, which is not a number."
                )
            line[name] = number
        if lost := before.keys() - line.keys():
            raise UserError(f"A callback has removed '{min(lost)}' from a line of the log.")


def plain(value: Any) -> Any:
    """A numpy or torch number as a Python number; anything else unchanged."""
    return value.item() if getattr(value, "size", 0) == 1 or getattr(value, "ndim", 1) == 0 else value


def _can_be_logged(value: Any, deepest: int = 8) -> bool:
    """Whether a value can stand in a line of metrics.jsonl, and TensorBoard can have its numbers."""
    if isinstance(value, Mapping | list | tuple) and not deepest:  # perhaps it contains itself
        return False
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _can_be_logged(part, deepest - 1) for name, part in value.items())
    if isinstance(value, list | tuple):
        return all(_can_be_logged(part, deepest - 1) for part in value)
    return value is None or isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 2**1000)


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Refuse what is no callback, and methods that would never be called."""
    if isinstance(callbacks, Callback):
        raise UserError("callbacks must be a list of callbacks, but is a single one; write callbacks=[…].")
    if not isinstance(callbacks, Sequence):
        raise UserError(f"callbacks must be a list of callbacks, but is {callbacks!r:.80}.")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise UserError(f"callbacks must be instances of shoal.Callback, but one is {callback!r:.80}.")
        for name in HOOKS:
            if not callable(getattr(callback, name)):
                raise UserError(f"{name} of the callback {type(callback).__name__} is not a method.")
        for name, _ in inspect.getmembers_static(type(callback), callable):
            if name.startswith("on_") and name not in HOOKS:
                raise UserError(
                    f"The callback {type(callback).__name__} has a method {name}, which would never be called; there "
                    f"are {', '.join(HOOKS)}."
                )
