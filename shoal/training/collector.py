"""Collecting, separate from learning: act, step, insert.

A collector knows a world, an actor and a sink for transitions; it imports no torch, so that it can run in a separate
process, with an inference engine as the actor and transitions that are sent elsewhere.

Shape letters: E copies, N agents, O observation, A action.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.envs.base import Array, Step, VectorEnv
from shoal.errors import Diverged
from shoal.replay.normalisation import Normalisation
from shoal.training.returns import Episode, ReturnTracker


class BehaviourPolicy(Protocol):
    """Chooses actions: a learning team, or an engine that runs a copy of its policies."""

    def act(self, observation: Array) -> Array:
        """Actions (E, N, A) for observations (E, N, O), with exploration noise."""

    def to_world(self, actions: Array) -> Array:
        """Actions in the world's units."""


class Rows(Protocol):
    """Receives transitions: a ring, or a chunk to be sent to one."""

    def begin(self, observation: ArrayLike) -> None:
        """Receive the first observation of the run (E, N, O)."""

    def add(self, actions: ArrayLike, step: Step) -> None:
        """Add one transition to every copy: the actions (E, N, A) as played, and the step that they led to."""


class Collecting:
    """Fills the ring, in this process or with the help of others, and counts samples and whole episodes."""

    def __init__(self, env: VectorEnv) -> None:
        self.env, self.observation = env, env.reset()  # (E, N, O)
        self.episodes = self.samples = 0

    def begin(self) -> None:
        """The run begins, or resumes."""

    def step(self, phase: Callable[[str], None]) -> list[Episode]:
        """Some more transitions; returns the episodes that ended with them. `phase` is called with each phase."""
        raise NotImplementedError

    def close(self) -> None:
        """Collecting has ended."""

    def metrics(self) -> dict[str, float | str | None]:
        """What else to log, by name."""
        return {}

    def summary(self) -> str:
        """A sentence for the end of the run; may be empty."""
        return ""

    def state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        """Arrays and counters; the world and the ring have states of their own."""
        return {}, {"episodes": self.episodes, "samples": self.samples}

    def load_state(self, arrays: dict[str, NDArray], counters: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.episodes, self.samples = counters["episodes"], counters["samples"]


class Collector(Collecting):
    """Plays all copies of a world in this process, a step of every copy at a time."""

    def __init__(self, env: VectorEnv, actor: BehaviourPolicy, rows: Rows, normalisation: Normalisation) -> None:
        super().__init__(env)
        self.actor, self.rows, self.normalisation = actor, rows, normalisation
        rows.begin(self.observation)
        normalisation.begin(self.observation)
        self.returns = ReturnTracker(env.spec, env.episode_step == 0)

    def step(self, phase: Callable[[str], None]) -> list[Episode]:
        phase("action selection")
        actions = self.actor.act(self.observation)
        if not np.isfinite(actions.sum()):
            raise Diverged("The policy's actions are not numbers")
        phase("environment")
        step = self.env.step(self.actor.to_world(actions))
        phase("replay insertion")
        if not self.env.spec.fixed_length:
            actions = actions * step.alive[..., None]  # agents that have left act zeros
        self.rows.add(actions, step)
        self.normalisation.add(step)
        phase("other")
        ended = self.returns.add(step)
        self.episodes += len(ended)
        self.samples += self.env.copies
        self.observation = step.observation
        return ended

    def close(self) -> None:
        """Close the world: its copies may be other processes."""
        self.env.close()

    def state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        """Also the last observation, and the rewards so far of the episodes under way."""
        sums = {f"returns.{name}": array for name, array in self.returns.state().items()}
        arrays = {"observation": self.observation, **sums, **self.normalisation.rollout_state()}
        return arrays, super().state()[1]

    def load_state(self, arrays: dict[str, NDArray], counters: dict[str, Any]) -> None:
        super().load_state(arrays, counters)
        self.observation = arrays["observation"]
        self.returns.load_state({name: arrays[f"returns.{name}"] for name in self.returns.state()})
        self.normalisation.load_rollout_state(arrays)
