"""How a version of a policy travels to the actors: every number in 32 or 16 bits, or weights as packed codes of few.

The learner hands over the policy's numbers as one row of float32: layer by layer, weights and then biases. The
quantizer turns it into the payload that is broadcast; actors turn that into weights for their engine. Codes are
symmetric with one scale per output; scales and biases stay float32.
Behind its numbers the learner may hand over recent states, on which the quantizer corrects the biases.
Shape letters: N agents, C networks, I inputs of a layer, U its outputs, S states, O observation.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shoal.actorq.versions import Bytes
from shoal.envs.base import EnvSpec
from shoal.inference.grid import encode, fields, pack
from shoal.inference.layers import Array, Linear
from shoal.inference.policy import Policy

BroadcastBits = Literal[32, 16, 8, 6, 4, 2]
BROADCAST_BITS: tuple[BroadcastBits, ...] = (32, 16, 8, 6, 4, 2)


def shapes(policy: Policy) -> list[tuple[int, int, int]]:
    """(C, I, U) of every layer."""
    return [layer.weight.shape for layer in policy.layers if isinstance(layer, Linear)]


def numbers_of(policy: Policy) -> Array:
    """All weights and biases in a row, as the learner hands them over."""
    return np.concatenate([part.ravel() for layer in policy.layers for part in (layer.weight, layer.bias)])


def split(policy: Policy, numbers: Array) -> Iterator[tuple[Array, Array]]:
    """Weights (C, I, U) and biases (C, U) of every layer, as views of the row."""
    at = 0
    for networks, inputs, outputs in shapes(policy):
        weight = numbers[at : at + networks * inputs * outputs].reshape(networks, inputs, outputs)
        at += weight.size
        yield weight, numbers[at : at + networks * outputs].reshape(networks, outputs)
        at += networks * outputs


def with_numbers(policy: Policy, numbers: Array) -> Policy:
    """The policy with other weights and biases."""
    layers = [
        replace(layer, weight=weight, bias=bias)
        for layer, (weight, bias) in zip(policy.layers, split(policy, numbers), strict=True)
    ]
    return replace(policy, layers=tuple(layers))


def to_payload(policy: Policy, numbers: Array, bits: int) -> Bytes:
    """The numbers in so many bits each."""
    if bits == 32:
        return _filled(numbers.view(np.uint8))
    if bits == 16:
        with np.errstate(over="ignore"):
            return _filled(numbers.astype(np.float16).view(np.uint8))
    parts: list[NDArray[np.uint8]] = []
    for weight, bias in split(policy, numbers):
        codes, grid = encode(weight, bits)
        parts += [codes.view(np.uint8).ravel()] if bits == 8 else pack(codes, bits)
        parts += [np.ascontiguousarray(array).view(np.uint8).ravel() for array in (grid.scale, bias)]
    return _filled(np.concatenate(parts))


def from_payload(policy: Policy, payload: Bytes, bits: int) -> Array:
    """The numbers that a payload stands for, in float32."""
    count = policy.parameters
    if bits == 32:
        return payload[: 4 * count].view(np.float32)
    if bits == 16:
        return payload[: 2 * count].view(np.float16).astype(np.float32)
    numbers = np.empty(count, np.float32)
    rest = payload
    for weight, bias in split(policy, numbers):
        widths = [8] if bits == 8 else fields(bits)
        sizes = [-(-weight.size * width // 8) for width in widths]
        *packed, scales, biases, rest = np.split(rest, np.cumsum([*sizes, bias.nbytes, bias.nbytes]))
        codes = packed[0].view(np.int8) if bits == 8 else unpack(packed, weight.size, bits)
        scale, bias[...] = (part.copy().view(np.float32).reshape(bias.shape) for part in (scales, biases))
        np.multiply(codes.reshape(weight.shape), scale[:, None], out=weight)
    return numbers


def unpack(packed: list[NDArray[np.uint8]], count: int, bits: int) -> NDArray[np.int8]:
    """The inverse of `pack`: so many symmetric codes."""
    codes = np.zeros(count, np.uint8)
    below = bits
    for width, part in zip(fields(bits), packed, strict=True):
        below -= width
        codes |= _spread(width)[part].view(np.uint8)[:count] << np.uint8(below)
    return codes.view(np.int8) - np.int8(2 ** (bits - 1) - 1)


@lru_cache
def _spread(width: int) -> NDArray[np.unsignedinteger]:
    """For every byte its fields of `width` bits, the lowest first, as bytes side by side in one number."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)
    apart = (np.arange(256, dtype=np.uint8)[:, None] >> shifts) & np.uint8(2**width - 1)
    return apart.view(f"u{len(shifts)}")[:, 0]


def _filled(payload: Bytes) -> Bytes:
    """Filled up with zeros to a multiple of 8 bytes."""
    payload = np.ascontiguousarray(payload)
    return payload if payload.size % 8 == 0 else np.concatenate([payload, np.zeros(-payload.size % 8, np.uint8)])


# ---- recent states ---------------------------------------------------------------------------------------------------

STATES = 256  # recent states that are kept, unless correcting a version on them takes more than MULTIPLICATIONS
MULTIPLICATIONS = 2**28
THIN = 4  # one of so many successive states is kept: neighbours are alike


def states_for(policy: Policy) -> int:
    """How many states a policy of this size is corrected on."""
    return max(8, min(STATES, MULTIPLICATIONS // policy.unshared().parameters))


class RecentStates:
    """The last states that came in, as one row of numbers: how many there are, and the states."""

    def __init__(self, most: int, spec: EnvSpec) -> None:
        self.shape = most, spec.agents, spec.observation_size
        self.row = np.zeros((2 + most * spec.agents * spec.observation_size + 1) // 2 * 2 if most else 0, np.float32)
        self._states = self.row[2 : 2 + int(np.prod(self.shape))].reshape(self.shape)
        self._added = 0

    def behind(self, numbers: Array) -> Array:
        """A copy of the policy's numbers, with the states behind them."""
        return np.concatenate([numbers, self.row])

    def add(self, observation: NDArray[np.float32]) -> None:
        """Keep some of these observations (…, N, O)."""
        most, *sizes = self.shape
        if not most:
            return
        rows = observation.reshape(-1, *sizes)[::THIN][-most:]
        self._states[(self._added + np.arange(len(rows))) % most] = rows
        self._added += len(rows)
        self.row[0] = min(self._added, most)


def states_in(row: Array, sizes: tuple[int, int]) -> Array:
    """(S, N, O): the states in such a row; `sizes`: (N, O) of each."""
    count = int(row[0]) if len(row) else 0
    return row[2 : 2 + count * sizes[0] * sizes[1]].reshape(count, *sizes)
