"""Multilayer perceptrons in memory, and their passes as operations.

A network's numbers lie one layer after the other: the weights in panels of 16 columns (the last 8 of an odd multiple by
themselves), then the bias, all padded with zeros to a multiple of 8 columns. A last layer with one output, as a critic
has, is a vector. Gradients, Adam's moments and targets have the same layout, so an optimizer's step is one loop.
Products with transposed weights read copies in panels, which are updated after every step.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shoal.native.operations import NOWHERE, Rows
from shoal.native.program import Program, padded
from shoal.native.tile import PANEL

if TYPE_CHECKING:
    from shoal.algorithms.config import LearnConfig

Arrays = list[NDArray]  # weight (inputs, units), bias (1, units), weight, bias, …


@dataclass(frozen=True)
class Layer:
    """One layer's place in its network."""

    inputs: int
    units: int
    weight: int  # where the weights begin, counted from the network's first number
    transposed: int  # where the transposed weights begin, counted from the first of those
    value: bool  # whether it has one output, and its weights are a vector
    members: int = 1  # agents that share the network: of the first layer each has a bias of its own

    @property
    def bias(self) -> int:
        """Where the bias begins."""
        return self.weight + (padded(self.inputs) if self.value else self.inputs * padded(self.units))

    @property
    def end(self) -> int:
        """Where the next layer begins."""
        return self.bias + self.members * padded(self.units)


class Shape:
    """Layout of a network with these widths, inputs and outputs included."""

    def __init__(self, *widths: int, value: bool = False, members: int = 1) -> None:
        """`value`: the last layer has one output, whose weights are kept as a vector.

        `members`: agents that share a network, each with a bias of its own in the first layer.
        """
        self.layers: list[Layer] = []
        at = transposed = 0
        for number, (inputs, units) in enumerate(pairwise(widths)):
            last = value and number + 2 == len(widths)
            self.layers.append(Layer(inputs, units, at, transposed, last, 1 if number else members))
            at, transposed = self.layers[-1].end, transposed + units * padded(inputs)
        self.size = -(-at // PANEL) * PANEL
        self.transposed_size = max(transposed, 1)

    def arrays(self) -> list[tuple[int, int]]:
        """Place and size of each weight array and bias, padding included."""
        places = [place for layer in self.layers for place in (layer.weight, layer.bias)]
        return [(first, end - first) for first, end in pairwise([*places, self.layers[-1].end])]

    def write(self, numbers: NDArray, arrays: Arrays) -> None:
        """Put a network's arrays into its numbers."""
        for layer, weight, bias in zip(self.layers, arrays[::2], arrays[1::2], strict=True):
            numbers[layer.bias : layer.end].reshape(layer.members, -1)[:, : layer.units] = bias
            if layer.value:
                numbers[layer.weight : layer.weight + layer.inputs] = weight[:, 0]
                continue
            wide = np.zeros((layer.inputs, padded(layer.units)), numbers.dtype)
            wide[:, : layer.units] = weight
            panels = [wide[:, first : first + PANEL].ravel() for first in range(0, wide.shape[1], PANEL)]
            numbers[layer.weight : layer.bias] = np.concatenate(panels)

    def read(self, numbers: NDArray) -> Arrays:
        """A network's arrays, as copies."""
        arrays: Arrays = []
        for layer in self.layers:
            if layer.value:
                weight = numbers[layer.weight : layer.weight + layer.inputs, None]
            else:
                size = layer.inputs * PANEL
                panels = np.split(numbers[layer.weight : layer.bias], range(size, layer.bias - layer.weight, size))
                weight = np.hstack([panel.reshape(layer.inputs, -1) for panel in panels])[:, : layer.units]
            bias = numbers[layer.bias : layer.end].reshape(layer.members, -1)[:, : layer.units]
            arrays += [weight.copy(), bias.copy()]
        return arrays


class Networks:
    """Networks of one shape, such as all agents' critics, with what learning them takes."""

    def __init__(self, program: Program, shape: Shape, count: int, learned: bool = True) -> None:
        self.program, self.shape, self.count = program, shape, count
        self.at = program.zeros(count * shape.size)
        self.learned = learned
        if learned:
            self.transposed = program.zeros(count * shape.transposed_size)
            self.mean, self.square = program.zeros(count * shape.size), program.zeros(count * shape.size)

    def numbers(self, number: int, part: str = "weights") -> NDArray:
        """One network's numbers: its `weights`, or Adam's `mean` or `square` of them."""
        at = {"weights": self.at, "mean": self.mean, "square": self.square}[part] if self.learned else self.at
        return self.program.values(at + number * self.shape.size)[: self.shape.size]

    def __getitem__(self, number: int) -> "Network":
        """One of them, for recording."""
        return Network(self, number)

    def of(self, number: int, member: int) -> "Network":
        """One of them, as a member that shares it sees it."""
        return Network(self, number, member)


class Network:
    """One network in a program that is being recorded."""

    def __init__(self, stack: Networks, number: int, member: int = 0) -> None:
        """`member`: which of the agents that share it, in their order."""
        self.program, self.shape, self.stack, self.number = stack.program, stack.shape, stack, number
        self.member = member
        self.at = stack.at + number * self.shape.size
        if stack.learned:
            self.transposed = stack.transposed + number * self.shape.transposed_size

    def first_product(self, x: Rows) -> Rows:
        """x W of the first layer: the same for all members."""
        layer = self.shape.layers[0]
        out = self.program.scratch(layer.units)
        self.program.affine(out, x, self.at + layer.weight, layer.inputs, NOWHERE, 0, relu=False)
        return out

    def forward(self, x: Rows, product: Rows | None = None, change: Rows | None = None, column: int = 0) -> list[Rows]:
        """The input and every layer's output; a ReLU after all but the last.

        `product` is that of the first layer, where it is known. With a `change` of the columns of x from `column` on,
        the first layer's output is corrected by it.
        """
        program, outputs = self.program, [x]
        for k, layer in enumerate(self.shape.layers):
            weight, bias = self.at + layer.weight, self.at + self._bias(k)
            out = program.vector() if layer.value else program.scratch(layer.units)
            relu = k + 1 < len(self.shape.layers) and (k > 0 or change is None)
            if layer.value:
                program.dots(out, outputs[-1], weight, bias)
            elif k == 0 and product is not None:
                program.add(out, product, Rows(bias, 0, layer.units), relu)
            else:
                program.affine(out, outputs[-1], weight, layer.inputs, bias, 0, relu)
            if k == 0 and change is not None:
                program.affine(out, change, weight, layer.inputs, None, column, relu=True)
            outputs.append(out)
        return outputs

    def _bias(self, k: int) -> int:
        """Where the bias of layer k begins, in the first layer this member's own."""
        layer = self.shape.layers[k]
        return layer.bias + (0 if k else self.member * padded(layer.units))

    def backward(self, gradient: Rows, outputs: list[Rows], into: int | None, total: Rows | None = None) -> Rows:
        """The gradient before the first layer's ReLU, given that of the last output.

        `into`: where this network's gradients of weights and biases are added; None: nowhere.
        `total`: where that gradient is added up over all members; see `first_weights`.
        """
        program = self.program
        for k in reversed(range(len(self.shape.layers))):
            layer, x = self.shape.layers[k], outputs[k]
            if into is not None:
                if layer.value:
                    program.add_columns(into + layer.weight, x, by=gradient)
                elif k == 0 and total is not None:
                    program.add(total, total, gradient) if self.member else program.copy(total, gradient)
                else:
                    program.to_weight(into + layer.weight, x, gradient)
                program.add_columns(into + self._bias(k), gradient)
            if k == 0:
                break
            below = program.scratch(layer.inputs)
            if layer.value:
                program.outer(below, gradient, self.at + layer.weight, mask=x)
            else:
                program.to_input(below, gradient, self.transposed + layer.transposed, mask=x)
            gradient = below
        return gradient

    def first_weights(self, total: Rows, x: Rows, into: int) -> None:
        """Add the gradient of the first layer's weights, given the members' total before its ReLU."""
        self.program.to_weight(into + self.shape.layers[0].weight, x, total)

    def step(self, gradients: int, config: "LearnConfig", members: int = 1) -> None:
        """Clip the gradients, array by array or those of the whole network, and let Adam step.

        They are sums over the members that share it, and may be as many times the limit.
        """
        for first, size in self.shape.arrays() if config.clip_by == "variable" else [(0, self.shape.size)]:
            at = self.number * self.shape.size + first
            places = (self.stack.at + at, gradients + first, self.stack.mean + at, self.stack.square + at)
            self.program.adam(*places, self.program.rate_factor, size, members * config.clip, config.learning_rate)
        self.transpose()

    def transpose(self) -> None:
        """Update the transposed copies."""
        for k, layer in enumerate(self.shape.layers):
            if k and not layer.value:
                to, source = self.transposed + layer.transposed, self.at + layer.weight
                self.program.transpose(to, source, layer.inputs, 0, layer.inputs, layer.units)

    def move_to(self, online: "Network", config: "LearnConfig") -> None:
        """Move this target towards an online network, once in `target_period` updates."""
        self.program.move(self.at, online.at, self.shape.size, config.target_period, config.tau)
