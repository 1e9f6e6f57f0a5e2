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

from shoal.native.operations import Rows
from shoal.native.program import Program, padded
from shoal.native.tile import PANEL

if TYPE_CHECKING:
    from shoal.algorithms.config import LearnConfig

Arrays = list[NDArray]  # weight (inputs, units), bias (1, units), weight, bias, …


@dataclass(frozen=True)
class Layer:
    """One layer's place in its network."""

    blocks: tuple[int, ...]  # inputs; the weights of each block of them are in panels of their own
    units: int
    weight: int  # where the weights begin, counted from the network's first number
    transposed: int  # where the transposed weights begin, counted from the first of those
    value: bool  # whether it has one output, and its weights are a vector
    biases: int  # of the first layer of critics one per agent that shares the network, or one per kind of agent

    @property
    def inputs(self) -> int:
        """Rows of the weights."""
        return sum(self.blocks)

    @property
    def bias(self) -> int:
        """Where the bias begins."""
        return self.weight + (padded(self.inputs) if self.value else self.inputs * padded(self.units))

    @property
    def end(self) -> int:
        """Where the next layer begins."""
        return self.bias + self.biases * padded(self.units)

    def block(self, number: int) -> int:
        """Where the weights of a block of inputs begin."""
        return self.weight + sum(self.blocks[:number]) * padded(self.units)

    def transposed_block(self, number: int) -> int:
        """Where the transposed weights of a block of inputs begin."""
        return self.transposed + sum(map(padded, self.blocks[:number])) * self.units


class Shape:
    """Layout of a network of these layers, each given as its blocks of inputs and its units."""

    def __init__(self, *layers: tuple[tuple[int, ...], int], value: bool = False, biases: int = 1) -> None:
        """`value`: the last layer has one output, whose weights are kept as a vector. `biases` of the first layer."""
        self.layers: list[Layer] = []
        at = transposed = 0
        for number, (blocks, units) in enumerate(layers):
            last = value and number + 1 == len(layers)
            self.layers.append(Layer(blocks, units, at, transposed, last, 1 if number else biases))
            at, transposed = self.layers[-1].end, self.layers[-1].transposed_block(len(blocks))
        self.size = -(-at // PANEL) * PANEL
        self.transposed_size = max(transposed, 1)

    def arrays(self) -> list[tuple[int, int]]:
        """Place and size of each weight array and bias, padding included."""
        places = [place for layer in self.layers for place in (layer.weight, layer.bias)]
        return [(first, end - first) for first, end in pairwise([*places, self.layers[-1].end])]

    def write(self, numbers: NDArray, arrays: Arrays) -> None:
        """Put a network's arrays into its numbers."""
        for layer, weight, bias in zip(self.layers, arrays[::2], arrays[1::2], strict=True):
            numbers[layer.bias : layer.end].reshape(layer.biases, -1)[:, : layer.units] = bias
            if layer.value:
                numbers[layer.weight : layer.weight + layer.inputs] = weight[:, 0]
                continue
            wide = np.zeros((layer.inputs, padded(layer.units)), numbers.dtype)
            wide[:, : layer.units] = weight
            blocks = np.split(wide, np.cumsum(layer.blocks)[:-1])
            panels = [block[:, u : u + PANEL].ravel() for block in blocks for u in range(0, wide.shape[1], PANEL)]
            numbers[layer.weight : layer.bias] = np.concatenate(panels)

    def read(self, numbers: NDArray) -> Arrays:
        """A network's arrays, as copies."""
        arrays: Arrays = []
        for layer in self.layers:
            if layer.value:
                weight = numbers[layer.weight : layer.weight + layer.inputs, None]
            else:
                places = [layer.block(number) for number in range(len(layer.blocks) + 1)]
                weight = np.vstack(
                    [
                        _from_panels(numbers[first:end], rows)
                        for rows, (first, end) in zip(layer.blocks, pairwise(places), strict=True)
                    ]
                )[:, : layer.units]
            bias = numbers[layer.bias : layer.end].reshape(layer.biases, -1)[:, : layer.units]
            arrays += [weight.copy(), bias.copy()]
        return arrays


def _from_panels(numbers: NDArray, rows: int) -> NDArray:
    """(rows, columns) of a block that is in panels."""
    panels = np.split(numbers, range(rows * PANEL, len(numbers), rows * PANEL))
    return np.hstack([panel.reshape(rows, -1) for panel in panels])


def chain(*widths: int) -> list[tuple[tuple[int, ...], int]]:
    """The layers between these widths, inputs and outputs included."""
    return [((inputs,), units) for inputs, units in pairwise(widths)]


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


class Network:
    """One network in a program that is being recorded."""

    def __init__(self, stack: Networks, number: int) -> None:
        self.program, self.shape, self.stack, self.number = stack.program, stack.shape, stack, number
        self.at = stack.at + number * self.shape.size
        if stack.learned:
            self.transposed = stack.transposed + number * self.shape.transposed_size

    def forward(self, x: Rows) -> list[Rows]:
        """The input and every layer's output; a ReLU after all but the last."""
        layer = self.shape.layers[0]
        out = self.program.scratch(layer.units)
        relu = len(self.shape.layers) > 1
        self.program.affine(out, x, self.at + layer.weight, layer.inputs, self.at + layer.bias, 0, relu)
        return self.rest([x, out])

    def rest(self, outputs: list[Rows]) -> list[Rows]:
        """The same with the outputs of all layers that follow the given ones."""
        program, layers = self.program, self.shape.layers
        for k in range(len(outputs) - 1, len(layers)):
            layer, x = layers[k], outputs[-1]
            weight, bias = self.at + layer.weight, self.at + layer.bias
            out = program.vector() if layer.value else program.scratch(layer.units)
            if layer.value:
                program.dots(out, x, weight, bias)
            else:
                program.affine(out, x, weight, layer.inputs, bias, 0, relu=k + 1 < len(layers))
            outputs.append(out)
        return outputs

    def backward(self, gradient: Rows, outputs: list[Rows], into: int) -> None:
        """Add the gradients of all weights and biases at `into`, given that of the last output."""
        gradient, layer = self.behind(0, gradient, outputs, into), self.shape.layers[0]
        self.program.to_weight(into + layer.weight, outputs[0], gradient)
        self.program.add_columns(into + layer.bias, gradient)

    def behind(self, first: int, gradient: Rows, outputs: list[Rows], into: int | None) -> Rows:
        """The gradient before the ReLU of layer `first`, given that of the last output.

        `into`: where the gradients of the layers behind it are added; None: nowhere.
        """
        program = self.program
        for k in reversed(range(first + 1, len(self.shape.layers))):
            layer, x = self.shape.layers[k], outputs[k]
            if into is not None:
                if layer.value:
                    program.add_columns(into + layer.weight, x, by=gradient)
                else:
                    program.to_weight(into + layer.weight, x, gradient)
                program.add_columns(into + layer.bias, gradient)
            below = program.scratch(layer.inputs)
            if layer.value:
                program.outer(below, gradient, self.at + layer.weight, mask=x)
            else:
                program.to_input(below, gradient, self.transposed + layer.transposed, mask=x)
            gradient = below
        return gradient

    def step(self, gradients: int, config: "LearnConfig", members: int = 1) -> None:
        """Clip the gradients, array by array or those of the whole network, and let Adam step.

        They are sums over the members that share it, and may be as many times the limit.
        """
        for first, size in self.shape.arrays() if config.clip_by == "variable" else [(0, self.shape.size)]:
            at = self.number * self.shape.size + first
            places = (self.stack.at + at, gradients + first, self.stack.mean + at, self.stack.square + at)
            self.program.adam(*places, size, members * config.clip, config.learning_rate)
        self.transpose()

    def transpose(self) -> None:
        """Update the transposed copies."""
        for layer in self.shape.layers[1:]:
            for number, rows in enumerate(() if layer.value else layer.blocks):
                to, source = self.transposed + layer.transposed_block(number), self.at + layer.block(number)
                self.program.transpose(to, source, rows, 0, rows, layer.units)

    def move_to(self, online: "Network", config: "LearnConfig") -> None:
        """Move this target towards an online network, once in `target_period` updates."""
        self.program.move(self.at, online.at, self.shape.size, config.target_period, config.tau)
