"""Int8 in native code that plays packed codes in place, e.g. in shared memory, so that swapping weights costs nothing.

A policy is packed into one buffer, with everything that is needed to play it, in the machine's byte order:

    header   int64: magic, version, checksum, sizes, one entry per layer, the action size of each agent, the agents in
             the order of their networks, how many each network has
    frame    float32: mean and deviation (N, O) of observations, low and high (N, A) of boxes, clip, divisor
    layers   each: scales (C, U) float32, biases (C, U) float32, sums of weights (C, U) int32, weights int8

Units are padded to tiles of 16 and inputs to groups of 4, with zeros; every part starts at a multiple of 64 bytes.
Weights are (C, tiles, groups, 16, 4): a product streams through each tile from the first byte to the last, 64 bytes at
a time, and the four inputs of a unit are the four bytes that one multiply-add instruction takes. The sender packs
once per version; actors neither quantize nor repack.
Shape letters: B batch rows, N agents, C networks, O observation, A action, I inputs of a layer, U its units.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UserError, check_range
from shoal.inference import int8_kernels as kernels
from shoal.inference.activation_kernels import SQUASHES
from shoal.inference.engine import NATIVE_INPUTS, CompiledEngine, fitting, frame_of, refuse_grids
from shoal.inference.form import Arrays, Form, layer_arrays
from shoal.inference.grid import safe_bits
from shoal.inference.layers import ACTIVATIONS, Array, Linear
from shoal.inference.policy import Policy

Bytes = NDArray[np.uint8]
Words = NDArray[np.int64]

MAGIC, VERSION = int.from_bytes(b"shoal-i8", "little"), 2
ALIGN = 64
HEADS = ("argmax", "categorical", "box", "gaussian")


def padded(size: int, to: int) -> int:
    """The size rounded up to a multiple."""
    return -(-size // to) * to


def header_of(policy: Policy, bits: int) -> Words:
    """The header for a policy as it is played; the checksum is 0."""
    n, members = policy.agents, policy.members
    layers = [layer for layer in policy.layers if isinstance(layer, Linear)]
    frame = padded(8 * (kernels.FIRST + kernels.FIELDS * len(layers) + 2 * n + len(members)), ALIGN)
    at = padded(frame + 8 * n * (policy.observation_size + policy.action_size) + 8, ALIGN)
    fields = []
    for layer in layers:
        inputs, units = layer.weight.shape[1:]
        fields += [inputs, units, ACTIVATIONS.index(layer.activation), at]
        at += len(members) * padded(units, kernels.TILE) * (12 + padded(inputs, kernels.GROUP))
    head = [MAGIC, VERSION, 0, bits, SQUASHES.index(policy.head.squash), at, HEADS.index(policy.head.kind), n]
    head += [policy.observation_size, policy.action_size, len(layers), policy.one_hot, frame, len(members)]
    return np.array([*head, *fields, *policy.action_sizes, *chain(*members), *map(len, members)], np.int64)


def pack_codes(policy: Policy, bits: int | None = None, out: Bytes | None = None) -> Bytes:
    """Pack a policy of linear layers for `NativeEngine.load_codes`; returns the bytes, a view of `out` if given.

    `bits` of the weights are by default 8, or 7 where 8-bit products could saturate. `out` may be a slot in shared
    memory.
    """
    return write_codes(checked(policy).check().played(), safe_bits() if bits is None else bits, out)


def checked(policy: Policy) -> Policy:
    """The policy itself; a `UserError` if the native engine cannot play it."""
    if not policy.linear_only:
        raise UserError("The native engine runs linear layers only, but the policy has convolutions; use onnx.")
    refuse_grids(policy, "native")
    widest = max(layer.weight.shape[1] for layer in policy.layers)
    if widest > NATIVE_INPUTS:
        raise UserError(f"The native engine takes layers of up to {NATIVE_INPUTS:,} inputs, but one has {widest:,}.")
    return policy


def write_codes(policy: Policy, bits: int, out: Bytes | None = None) -> Bytes:
    """`pack_codes` without the checks."""
    check_range("bits", bits, 2, 8)
    header = header_of(policy, bits)
    size = int(header[kernels.SIZE])
    if out is None:
        whole = np.empty(size + ALIGN, np.uint8)
        out = whole[-whole.ctypes.data % ALIGN :]
    elif out.dtype != np.uint8 or not out.flags.c_contiguous or out.ctypes.data % 8 or out.size < size:
        raise ValueError(f"out must be {size} or more contiguous bytes that start at a multiple of 8")
    out = out.reshape(-1)[:size]
    out[: header[kernels.FIRST + kernels.START]] = 0  # the gaps as well: equal policies give equal bytes
    out[: header.nbytes].view(np.int64)[:] = header
    _frame(out, header)[:] = _frame_numbers(policy)
    for layer, parts in zip(policy.layers, _parts(out, header), strict=True):
        arrays = layer_arrays(layer, Form("int8", bits), by_rows=False)
        for name in ("scale", "bias"):
            parts[name][:, : layer.outputs], parts[name][:, layer.outputs :] = arrays[name], 0
        kernels.lay_out(np.ascontiguousarray(arrays["weight"]), parts["weight"].view(np.uint32)[..., 0], parts["sums"])
    out.view(np.uint64)[kernels.CHECKSUM] = kernels.checksum(out.view(np.uint64))
    return out


def open_codes(buffer: Any, expected: Words) -> tuple[Words, Bytes]:
    """A copy of the header and a read-only view of packed codes, in a buffer that may be longer.

    A `UserError` if it holds something else, is truncated, or belongs to a policy of other shapes than `expected` has.
    """
    data = np.frombuffer(buffer, np.uint8)
    if data.size < expected.nbytes or data.ctypes.data % 8:
        raise UserError("The buffer holds no packed codes: it is too short, or not aligned to 8 bytes.")
    header = data[: expected.nbytes].view(np.int64).copy()
    if header[kernels.MAGIC_AT] != MAGIC:
        raise UserError("The buffer holds no packed codes: it starts with other bytes.")
    if (version := header[kernels.VERSION_AT]) != VERSION:
        raise UserError(f"The packed codes have format version {version}, but this Shoal reads {VERSION}.")
    if not np.array_equal(header[kernels.FIXED :], expected[kernels.FIXED :]):
        raise UserError("The packed codes are of a policy with other layers; make a new engine for it.")
    if data.size < header[kernels.SIZE]:
        raise UserError(f"The packed codes are truncated: {data.size:,} of {header[kernels.SIZE]:,} bytes.")
    if not 2 <= header[kernels.BITS] <= 8 or not 0 <= header[kernels.SQUASH] < len(SQUASHES):
        raise UserError("The packed codes are damaged: their header is invalid.")
    data = data[: header[kernels.SIZE]]
    data.flags.writeable = False
    return header, data


def verify_codes(buffer: Any) -> None:
    """Raise a `UserError` unless the checksum of packed codes is right; half a millisecond per 10 MB."""
    data = np.frombuffer(buffer, np.uint8)
    words = data[: data.size // 8 * 8].view(np.uint64)
    size = int(words[kernels.SIZE]) if words.size > kernels.FIRST and words[kernels.MAGIC_AT] == MAGIC else 0
    if not 8 * kernels.FIRST < size <= data.size or size % ALIGN:
        raise UserError("The packed codes are truncated or damaged: their header is invalid.")
    if kernels.checksum(words[: size // 8]) != words[kernels.CHECKSUM]:
        raise UserError("The packed codes are damaged: their checksum does not match.")


def unpack_codes(buffer: Any, policy: Policy, bits: int = 8) -> list[Arrays]:
    """The arrays of each layer in packed codes: weight (C, I, U) int8, scale, bias and sums (C, U).

    The policy has the same shapes, normaliser and box, and the weights have at most this many bits.
    """
    expected = header_of(checked(policy), bits)
    header, data = open_codes(buffer, expected)
    same_frame = np.array_equal(_frame(data, header), _frame_numbers(policy))
    if header[kernels.SQUASH] != expected[kernels.SQUASH] or not same_frame:
        raise UserError("The packed codes have another normaliser or box; load the policy itself.")
    if header[kernels.BITS] > bits:
        raise UserError(f"The packed codes have {header[kernels.BITS]} bits, but this engine takes up to {bits} here.")
    layers = []
    for k, parts in enumerate(_parts(data, header)):
        inputs, units = header[kernels.FIRST + kernels.FIELDS * k :][:2]
        weight = parts.pop("weight").transpose(0, 2, 4, 1, 3)  # groups, inputs of each; tiles, units of each
        n, groups, _, tiles, _ = weight.shape
        arrays = {name: array[:, :units] for name, array in parts.items()}
        arrays["weight"] = weight.reshape(n, groups * kernels.GROUP, tiles * kernels.TILE)[:, :inputs, :units]
        layers.append(arrays)
    return layers


def _frame(data: Bytes, header: Words) -> NDArray[np.float32]:
    numbers = 2 * header[kernels.AGENTS] * (header[kernels.SEEN] + header[kernels.ACTION]) + 2
    return data[header[kernels.FRAME] :][: 4 * numbers].view(np.float32)


def _frame_numbers(policy: Policy) -> NDArray[np.float32]:
    mean, deviation, clip, low, high = frame_of(policy)
    numbers = mean, deviation, low, high, [clip, 255 if policy.scale_image else 1]
    return np.concatenate([np.asarray(part, np.float32).ravel() for part in numbers])


def _parts(data: Bytes, header: Words) -> Iterator[Arrays]:
    """Views of each layer's scale, bias and sums (C, padded U) and weight (C, tiles, groups, 16, 4)."""
    n = int(header[kernels.NETWORKS])
    for k in range(header[kernels.LAYERS]):
        inputs, units, _, at = (int(word) for word in header[kernels.FIRST + kernels.FIELDS * k :][: kernels.FIELDS])
        wide, groups = padded(units, kernels.TILE), padded(inputs, kernels.GROUP) // kernels.GROUP
        small = data[at : at + 12 * n * wide].reshape(3, n, 4 * wide)
        weight = data[at + 12 * n * wide :][: n * wide * groups * kernels.GROUP].view(np.int8)
        yield {
            "scale": small[0].view(np.float32),
            "bias": small[1].view(np.float32),
            "sums": small[2].view(np.int32),
            "weight": weight.reshape(n, wide // kernels.TILE, groups, kernels.TILE, kernels.GROUP),
        }


class NativeEngine(CompiledEngine):
    """A policy of linear layers in int8, played in one compiled call."""

    name, precision = "native", "int8"

    def __init__(self, policy: Policy) -> None:
        """`policy` must have linear layers only."""
        policy = checked(policy).played()
        super().__init__(policy)
        self._expected = header_of(policy, safe_bits())
        widest = max(kernels.ROWS, policy.observation_size, policy.one_hot, *(layer.outputs for layer in policy.layers))
        self._scratch = np.zeros((4, kernels.ROWS, padded(widest, ALIGN)), np.float32)
        self.load_codes(write_codes(policy, safe_bits()))

    @property
    def nbytes(self) -> int:
        return int(self._header[kernels.SIZE])

    def play(self, observation: Array, noise: Array, choices: NDArray[np.int64], boxes: Array) -> None:
        args = observation, self._header, self._packed, self._kind, self._scratch, noise, choices, boxes
        kernels.play(*args, self.policy.masked)

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
        self._kind = kernels.product_kind(int(self._header[kernels.BITS]))
