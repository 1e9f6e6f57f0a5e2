"""Collecting apart from learning: act, step, insert.

A collector knows a world, whatever acts in it and where the rows go; it imports no torch, so that it can run in a
process of its own, with an engine of `shoal.inference` that acts and rows that are sent elsewhere.

Shape letters: E copies, N agents, O observation, A action.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shoal.envs.base import Array, Step, VectorEnv
from shoal.errors import Diverged
from shoal.training.returns import Episode, ReturnTracker


class Actor(Protocol):
    """Chooses actions: a team that learns, or an engine that runs a copy of its policies."""

    def act(self, observation: Array) -> Array:
        """Actions (E, N, A) for observations (E, N, O), with exploration noise."""
        ...

    def to_world(self, actions: Array) -> Array:
        """Actions in the world's units."""
        ...


class Rows(Protocol):
    """Takes what happens: a ring, or a chunk that is on its way to one."""

    def begin(self, observation: ArrayLike) -> None:
        """Take the first observation of the run (E, N, O)."""
        ...

    def add(self, actions: ArrayLike, step: Step) -> None:
        """Add one transition to every copy: the actions (E, N, A) as played and what came of them."""
        ...


class Collector:
    """Plays all copies of a world, step by step, and counts samples and whole episodes."""

    def __init__(self, env: VectorEnv, actor: Actor, rows: Rows) -> None:
        self.env, self.actor, self.rows = env, actor, rows
        self.observation = env.reset()  # (E, N, O)
        rows.begin(self.observation)
        self.returns = ReturnTracker(env)
        self.episodes = self.samples = 0

    def step(self, phase: Callable[[str], None]) -> list[Episode]:
        """One step of all copies; returns the episodes that ended with it. `phase` is told what begins."""
        phase("action selection")
        actions = self.actor.act(self.observation)
        if not np.isfinite(actions.sum()):
            raise Diverged("The policy's actions are not numbers")
        phase("environment")
        step = self.env.step(self.actor.to_world(actions))
        phase("replay insertion")
        if not self.env.spec.fixed_length:
            actions = actions * step.alive[..., None]  # who has left plays zeros
        self.rows.add(actions, step)
        phase("other")
        ended = self.returns.add(step)
        self.episodes += len(ended)
        self.samples += self.env.copies
        self.observation = step.observation
        return ended

    def state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        """Arrays and counters; the world and the rows have states of their own."""
        sums = {f"returns.{name}": array for name, array in self.returns.state().items()}
        return {"observation": self.observation, **sums}, {"episodes": self.episodes, "samples": self.samples}

    def load_state(self, arrays: dict[str, NDArray], counters: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.observation = arrays["observation"]
        self.returns.load_state({name: arrays[f"returns.{name}"] for name in self.returns.state()})
        self.episodes, self.samples = counters["episodes"], counters["samples"]
