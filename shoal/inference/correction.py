"""Calibration and correction of a quantized policy on recorded states, without training.

Bias correction: rounding shifts the mean of every pre-activation, and a shift of the outputs by more than the gap
between two actions changes the choice. Each layer's bias is moved so that the mean over the states is again that of
full precision. Layers are corrected in order: a layer's input is what the corrected layers before it give.

Rounding by output error: weights are rounded one input after the other, and the weights of the inputs that are still
to come make up for the error in the layer's outputs over the states (closed form, as in GPTQ: Frantar et al.). What is
approximated is the full-precision output, given the input that the rounded layers before it give.

Calibration freezes a grid for the input of every layer (static quantization). Without torch.
A network that several agents share is corrected and calibrated on the states of all of them; `of` says which network
each agent has, and is empty where each has its own.
Shape letters: B states, N agents, O observation, R rows of a product, I inputs of a layer, U its outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.envs.base import members
from shoal.errors import check_choice, check_range
from shoal.inference.grid import Grid, value_range
from shoal.inference.layers import (
    Array,
    ImageShape,
    Layer,
    Linear,
    Quantized,
    as_matrix,
    layer_codes,
    layer_of_agents,
    layer_rows,
    run_layer,
)  # fmt: skip
from shoal.inference.options import ROUNDINGS, Rounding
from shoal.inference.policy import Policy

Wide = NDArray[np.float64]
DAMPING = 0.01
"""Added to the diagonal of the inputs' second moments, as a share of its mean: inputs that never vary stay harmless."""
BLOCK = 64  # inputs between two updates of all weights that are still to be rounded


@dataclass(frozen=True)
class Correction:
    """What is corrected on recorded states."""

    bias: bool = True  # move the biases
    rounding: Rounding = "nearest"  # how weights are rounded

    def __post_init__(self) -> None:
        check_choice("rounding", self.rounding, ROUNDINGS)

    def __bool__(self) -> bool:
        """Whether it needs states at all."""
        return self.bias or self.rounding != "nearest"


BIAS, NOTHING = Correction(), Correction(bias=False)


def corrected(policy: Policy, states: Array, bits: int, correction: Correction = BIAS, by_rows: bool = False) -> Policy:
    """The policy with biases, and with output-error rounding weights, for playing with weights of so many bits.

    Layers that are frozen to input grids are played with those. Weights stay as they are where they are rounded to the
    nearest code, which the engine does; otherwise they lie on the grids that the layers then have. The states (B, N, O)
    are visited in full precision. `by_rows`: inputs without a frozen grid are rounded to 8 bits, each row on its own,
    as int8 engines do.
    """
    x = narrow = policy.network_input(states, np.float32)
    layers = []
    for layer, alone in zip(policy.layers, policy.unshared().layers, strict=True):
        narrow = _rounded_input(alone, narrow, by_rows)
        weight, fixed = corrected_layer(layer, x, narrow, bits, correction, policy.image, policy.network_of)
        layers.append(fixed)
        x = run_layer(alone, x, np.float32, False, policy.image)
        fixed = layer_of_agents(replace(fixed, weight=weight, quantized=None), policy.network_of)
        narrow = run_layer(fixed, narrow, np.float32, False, policy.image)
    return replace(policy, layers=tuple(layers))


def corrected_layer(
    layer: Layer, x: Array, narrow: Array, bits: int, correction: Correction, image: ImageShape, of: Sequence[int]
) -> tuple[Array, Layer]:
    """The weights that are played, and the layer corrected for its input in full precision and in low precision."""
    codes, grid = layer_codes(layer, bits)
    weight, fixed = np.multiply(codes, grid.scale, dtype=np.float32), layer
    if correction.rounding == "output-error":
        weight = output_rounded(layer, grid, x, narrow, correction.bias, image, of)
        frozen = None if layer.quantized is None else layer.quantized.input
        fixed = replace(layer, weight=weight, quantized=Quantized(grid, frozen))
    if correction.bias:
        fixed = replace(fixed, bias=moved_bias(layer, weight, x, narrow, image, of))
    return weight, fixed


def moved_bias(
    layer: Layer, weight: Array, x: Array, narrow: Array, image: ImageShape = None, of: Sequence[int] = ()
) -> Array:
    """The bias with which `weight` on `narrow` inputs gives the mean pre-activations of the layer on x, (N, B, …)."""
    before = _mean_row(layer, x, image, of) @ as_matrix(layer.weight)
    after = _mean_row(layer, narrow, image, of) @ as_matrix(weight)
    return layer.bias + (before - after).reshape(layer.bias.shape)


def output_rounded(
    layer: Layer, grid: Grid, x: Array, narrow: Array, centred: bool, image: ImageShape = None, of: Sequence[int] = ()
) -> Array:
    """The layer's weights, each network's rounded by output error to a grid, for inputs (N, B, …)."""
    rows, narrow_rows = (_by_network(layer_rows(layer, seen, image), of) for seen in (x, narrow))
    scales, zeros = (part.reshape(len(rows), 1, -1) for part in (grid.scale, grid.zero_point))
    rounded = [
        round_by_output(weight, replace(grid, scale=scales[n], zero_point=zeros[n]), rows[n], narrow_rows[n], centred)
        for n, weight in enumerate(as_matrix(layer.weight))
    ]
    return np.stack(rounded) if isinstance(layer, Linear) else rounded[0].T.reshape(layer.weight.shape).copy()


def round_by_output(weight: Array, grid: Grid, rows: Array, narrow: Array, centred: bool = True) -> Array:
    """Weights (I, U) on a grid whose products with the `narrow` rows (R, I) are near those in full precision.

    The narrow rows are the layer's input as the rounded layers before it give it, and rounded itself if it will be.
    `centred`: the bias makes up for the mean error, so that only deviations count.
    """
    before, after = (seen - seen.mean(0) if centred else seen for seen in (rows, narrow))
    moments = (after.T @ after).astype(np.float64) / len(after)  # (I, I)
    crossed = (after.T @ before).astype(np.float64) / len(after)
    extra = DAMPING * np.trace(moments) / len(moments)
    if not extra > 0:  # an input that never varies: every rounding is as good
        return np.asarray(grid.round(weight.astype(np.float64)), np.float32)
    damped = moments + extra * np.eye(len(moments))
    # the least-squares weights for the narrow rows, drawn to the original ones where the rows decide nothing
    wide = weight.astype(np.float64)
    target = wide + np.linalg.solve(damped, (crossed - moments) @ wide)
    return np.asarray(_in_sequence(target, grid, damped), np.float32)


def _in_sequence(weight: Wide, grid: Grid, moments: Wide) -> Wide:
    """Round the weights of one input after the other; those still to come make up for each error.

    With the upper factor F of the inverse moments = F^T F, the best change of the later weights j for an error e of
    input i is -F[i, j] / F[i, i] e. Inputs that matter most go first, while most others can still make up for them.
    """
    order = np.argsort(-np.diag(moments), kind="stable")
    left = weight[order]
    factor = np.linalg.cholesky(np.linalg.inv(moments[np.ix_(order, order)])).T
    rounded = np.empty_like(left)
    for begin in range(0, len(left), BLOCK):
        end = min(begin + BLOCK, len(left))
        errors = np.empty_like(left[begin:end])
        for i in range(begin, end):
            rounded[i] = grid.round(left[i : i + 1])[0]
            errors[i - begin] = (left[i] - rounded[i]) / factor[i, i]
            left[i + 1 : end] -= factor[i, i + 1 : end, None] * errors[i - begin]
        left[end:] -= factor[begin:end, end:].T @ errors
    restored = np.empty_like(rounded)
    restored[order] = rounded
    return restored


def _by_network(rows: NDArray[Any], of: Sequence[int]) -> list[NDArray[Any]]:
    """The rows (R, I) that each network sees, of those of each agent, (N, R, I)."""
    return [rows[own].reshape(-1, rows.shape[-1]) for own in members(of)] if of else list(rows)


def _mean_row(layer: Layer, x: Array, image: ImageShape, of: Sequence[int]) -> Array:
    """(C, 1, I): the mean over states and, of a convolution, places; products are linear, so the mean goes first."""
    rows = layer_rows(layer, x.mean(1, np.float64, keepdims=True), image)
    return np.stack([np.asarray(own.mean(0, keepdims=True), np.float32) for own in _by_network(rows, of)])


def _rounded_input(layer: Layer, x: Array, by_rows: bool) -> Array:
    """A layer's input as it is played."""
    if layer.quantized is not None and layer.quantized.input is not None:
        return np.asarray(layer.quantized.input.round(x))
    return np.asarray(Grid.of_numbers(x, 8, keep=(0, 1)).round(x)) if by_rows else x


def calibrated(policy: Policy, states: Array, bits: int) -> Policy:
    """The policy with an 8-bit grid for the input of every layer, and weights of this many bits.

    A grid spans the range of the layer's input over these states (B, N, O) and represents zero exactly. Layers that
    quantization-aware training has already frozen are kept.
    """
    check_range("bits", bits, 2, 8)
    policy = policy.played()
    layers = []
    for layer, seen in zip(policy.layers, policy.inputs_of_layers(states), strict=True):
        if layer.quantized is None or layer.quantized.input is None:
            rows = _by_network(seen.reshape(*seen.shape[:2], -1), policy.network_of)
            low, high = (np.stack(ends) for ends in zip(*(value_range(own) for own in rows), strict=True))
            layer = replace(layer, quantized=Quantized(layer_codes(layer, bits)[1], Grid.of_range(low, high, 8)))
        layers.append(layer)
    return replace(policy, layers=tuple(layers))
