"""How a version of a policy travels to the actors: every number in 32 or 16 bits, or weights as packed codes of few.

The learner hands over the policy's numbers as one row of float32: layer by layer, weights and then biases. The
quantizer turns it into the payload that is broadcast; actors turn that into weights for their engine. Codes are
symmetric with one scale per output; scales and biases stay float32.
Shape letters: N agents, I inputs of a layer, U its outputs.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shoal.actorq.versions import Bytes
from shoal.inference.grid import encode, fields, pack
from shoal.inference.layers import Array, Linear
from shoal.inference.policy import Policy

BroadcastBits = Literal[32, 16, 8, 6, 4, 2]
BROADCAST_BITS: tuple[BroadcastBits, ...] = (32, 16, 8, 6, 4, 2)


def shapes(policy: Policy) -> list[tuple[int, int, int]]:
    """(N, I, U) of every layer."""
    found = []
    for layer in policy.layers:
        assert isinstance(layer, Linear)
        agents, inputs, outputs = layer.weight.shape
        found.append((agents, inputs, outputs))
    return found


def numbers_of(policy: Policy) -> Array:
    """All weights and biases in a row, as the learner hands them over."""
    return np.concatenate([part.ravel() for layer in policy.layers for part in (layer.weight, layer.bias)])


def split(policy: Policy, numbers: Array) -> Iterator[tuple[Array, Array]]:
    """Weights (N, I, U) and biases (N, U) of every layer, as views of the row."""
    at = 0
    for agents, inputs, outputs in shapes(policy):
        weight = numbers[at : at + agents * inputs * outputs].reshape(agents, inputs, outputs)
        at += weight.size
        yield weight, numbers[at : at + agents * outputs].reshape(agents, outputs)
        at += agents * outputs


def with_numbers(policy: Policy, numbers: Array) -> Policy:
    """The policy with other weights and biases."""
    layers = [
        replace(layer, weight=weight, bias=bias)
        for layer, (weight, bias) in zip(policy.layers, split(policy, numbers), strict=True)
    ]
    return replace(policy, layers=tuple(layers))


def payload_bytes(policy: Policy, bits: int) -> int:
    """Bytes of a payload: everything that an actor gets for a version."""
    if bits >= 16:
        return _whole(policy.parameters * bits // 8)
    size = 0
    for agents, inputs, outputs in shapes(policy):
        count = agents * inputs * outputs
        size += sum(-(-count * width // 8) for width in fields_of(bits)) + 4 * 2 * agents * outputs
    return _whole(size)


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
    at = 0
    for weight, bias in split(policy, numbers):
        if bits == 8:
            codes = payload[at : at + weight.size].view(np.int8).reshape(weight.shape)
            at += weight.size
        else:
            packed = []
            for width in fields_of(bits):
                size = -(-weight.size * width // 8)
                packed.append(payload[at : at + size])
                at += size
            codes = unpack(packed, weight.size, bits).reshape(weight.shape)
        scales = payload[at : at + bias.nbytes].copy().view(np.float32).reshape(bias.shape)
        at += bias.nbytes
        bias[...] = payload[at : at + bias.nbytes].copy().view(np.float32).reshape(bias.shape)
        at += bias.nbytes
        np.multiply(codes, scales[:, None], out=weight)
    return numbers


def fields_of(bits: int) -> list[int]:
    """Widths of the fields that codes are cut into; whole bytes are one field."""
    return [8] if bits == 8 else fields(bits)


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


def _whole(size: int) -> int:
    return -(-size // 8) * 8


def _filled(payload: Bytes) -> Bytes:
    """Filled up with zeros to a multiple of 8 bytes."""
    payload = np.ascontiguousarray(payload)
    return payload if payload.size % 8 == 0 else np.concatenate([payload, np.zeros(-payload.size % 8, np.uint8)])
