"""Names and shapes of the inputs and outputs of a policy's ONNX graph.

Callers use observations (B, N, O), noise (B, N, A), choices (B, N) and boxes (B, N, A). The graph of a single agent has
no agent axis, and a graph for images takes (B, C, height, width).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.inference.layers import Array
from shoal.inference.policy import Actions, Policy

OBSERVATION, NOISE, ACTION = "observation", "noise", "action"


@dataclass(frozen=True)
class Ports:
    """The inputs and the output of a policy's graph, for any batch."""

    agents: int
    observation_size: int
    action_size: int
    discrete: bool
    draws: bool
    """Whether it takes noise to sample its choices."""
    image: tuple[int, ...] = ()

    @classmethod
    def of(cls, policy: Policy) -> "Ports":
        """The ports of this policy's graph."""
        head = policy.head
        sizes = policy.agents, policy.observation_size, policy.action_size
        return cls(*sizes, head.discrete, head.kind == "categorical", tuple(policy.image or ()))

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every input, without the batch."""
        seen = {OBSERVATION: (*self._team, *(self.image or (self.observation_size,)))}
        return seen | ({NOISE: (*self._team, self.action_size)} if self.draws else {})

    @property
    def output(self) -> tuple[int, ...]:
        """The shape of the action, without the batch."""
        return self._team if self.discrete else (*self._team, self.action_size)

    @property
    def _team(self) -> tuple[int, ...]:
        return () if self.agents == 1 else (self.agents,)

    def feed(self, observation: Array, noise: Array | None = None) -> dict[str, NDArray[Any]]:
        """The inputs of a session: observations (B, N, O) and, for a sampling policy, noise (B, N, A)."""
        given = {OBSERVATION: observation} | ({NOISE: noise} if noise is not None else {})
        return {
            name: np.ascontiguousarray(given[name], np.float32).reshape(len(observation), *shape)
            for name, shape in self.inputs.items()
        }

    def actions(self, output: NDArray[Any]) -> Actions:
        """Choices (B, N), or boxes (B, N, A), of a session's output."""
        return output.reshape(len(output), *self.action_shape)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """(N,) of choices, (N, A) of boxes."""
        return (self.agents,) if self.discrete else (self.agents, self.action_size)
