"""Int8 in native code that reads packed weights in place, so that swapping weights costs nothing.

Shape letters: B batch rows, N agents, O observation, A action.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.inference.codes import safe_bits
from shoal.inference.engine import Draws, check_observation, compiled_inputs, fitting
from shoal.inference.int8_kernels import BITS, ROWS, SIZE, play, product_kind
from shoal.inference.layers import Array
from shoal.inference.packed_codes import ALIGN, checked, header_of, open_codes, padded, write_codes
from shoal.inference.policy import Actions, Policy


class NativeEngine:
    """A policy of linear layers in int8, played in one compiled call."""

    name, precision = "native", "int8"

    def __init__(self, policy: Policy) -> None:
        """`policy` must have linear layers only."""
        self.policy = policy = checked(policy).played()
        self._draws = Draws()
        self._actions: dict[int, tuple[NDArray[np.int64], Array]] = {}
        self._expected = header_of(policy, safe_bits())
        widest = max(ROWS, policy.observation_size, policy.one_hot, *(layer.outputs for layer in policy.layers))
        self._scratch = np.zeros((4, ROWS, padded(widest, ALIGN)), np.float32)
        self.load_codes(write_codes(policy, safe_bits()))

    @property
    def nbytes(self) -> int:
        """Bytes of the packed codes."""
        return int(self._header[SIZE])

    def act(self, observation: Array, noise: Array | None = None) -> Actions:
        """The environment's actions for raw observations (B, N, O)."""
        policy, batch = self.policy, len(observation)
        choices, boxes = self._actions.get(batch) or self._new_actions(observation)
        observation, noise = compiled_inputs(policy, observation, noise, self._draws)
        play(observation, self._header, self._packed, self._kind, self._scratch, noise, choices, boxes)
        return choices if policy.head.discrete else boxes

    def load(self, policy: Policy) -> None:
        """Pack other weights of the same shapes and play them from now on."""
        policy = fitting(self.policy, checked(policy))
        self.load_codes(write_codes(policy, safe_bits()))
        self.policy = policy

    def load_codes(self, buffer: Any) -> None:
        """Play packed codes of a policy of the same shapes, in place.

        Only the header is copied: the caller keeps the buffer unchanged until other codes are loaded. The engine holds
        a view of it until then. `verify_codes` checks the checksum, if that is wanted.
        """
        self._header, self._packed = open_codes(buffer, self._expected)
        self._kind = product_kind(int(self._header[BITS]))

    def _new_actions(self, observation: Array) -> tuple[NDArray[np.int64], Array]:
        """Choices (B, N) and boxes (B, N, A), those empty that the policy does not have."""
        policy, batch = self.policy, len(observation)
        check_observation(policy, observation)
        choices = np.zeros((batch if policy.head.discrete else 0, policy.agents), np.int64)
        boxes = np.zeros((0 if policy.head.discrete else batch, policy.agents, policy.action_size), np.float32)
        self._actions[batch] = choices, boxes
        return choices, boxes
