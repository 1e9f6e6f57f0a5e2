"""How an emulation reads the operands of its products: each is rounded once, before the first product that takes it.

Without more, an operand is rounded to the format of the units that take it, to nearest; where these differ, each
product rounds for itself. A `Casts` (a scheme has one) says otherwise by the kind of operand.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from shoal.numerics.emulation.contraction import Read, Reader
from shoal.numerics.formats.types import FloatFormat, Scalar
from shoal.numerics.mac.unit import MacUnit
from shoal.numerics.rounding.plan import FLOAT32, fits
from shoal.numerics.rounding.quantize import quantize

WEIGHTS, INPUTS, GRADIENTS = KINDS = ("weights", "inputs", "activation_gradients")
"""Kinds of operands."""
FIRST = {"forward": INPUTS, "grad_input": GRADIENTS, "grad_weight": INPUTS}
"""The kind of a unit's first operand, by role, where operands have casts by kind."""

NORMALISATIONS = frozenset(("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "native_layer_norm"))
ACTIVATIONS = frozenset(
    "relu relu6 leaky_relu gelu silu mish elu selu celu hardtanh hardswish tanh sigmoid hardsigmoid softplus softmax "
    "log_softmax".split()
)
"""Functions of torch, by their names in its C++ code."""


class Taker(NamedTuple):
    """A product that takes an operand: its unit, and whether as first (0) or second (1) operand."""

    unit: MacUnit | None
    place: int


class Casts(Protocol):
    """Rules for the numbers of a model, in place of the units' own rounding."""

    def is_weight(self, x: Tensor) -> bool:
        """Whether this is a weight of the model, or a view of one."""

    def layer(self, x: Tensor) -> str:
        """The name of a weight; empty for other tensors."""

    def reader(self, kind: str, layer: str) -> Reader | None:
        """How operands of this kind are read; None leaves it to the units."""

    def in_blocks(self, kinds: tuple[str, str]) -> bool:
        """Whether an operand of these kinds has powers of two of its own for blocks of the matrix; if so, `product`."""

    def product(
        self, kinds: tuple[str, str], layer: str, a: Tensor, b: Tensor, through: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """What it takes to multiply matrices whose blocks have powers of two of their own."""

    def holds(self, kind: str, operand: Scalar) -> bool:
        """Whether what has been read of this kind consists of values of a unit's operand format."""

    @property
    def rounds_activations(self) -> bool:
        """Whether `after` does anything."""

    def before(self, name: str, x: Tensor) -> Tensor:
        """The input of a normalisation."""

    def after(self, name: str, x: Tensor) -> Tensor:
        """The output of an activation function."""


@lru_cache(maxsize=64)
def exchanged(unit: MacUnit) -> MacUnit:
    """The unit with its operand formats in the other order."""
    a, b = unit.multiplier.formats
    multiplier: Any = unit.multiplier
    return replace(unit, multiplier=replace(multiplier, a=b, b=a))


def common_format(takers: Sequence[Taker]) -> tuple[Scalar, str] | None:
    """The operand format of all takers and its rule for NaN, if they agree and float32 can represent it."""
    rules = {None if unit is None else (unit.multiplier.formats[place], unit.nan) for unit, place in takers}
    common = rules.pop() if len(rules) == 1 else None
    return common if common is not None and fits(common[0], FLOAT32) else None


def read_as(format: Scalar, nan: str) -> Reader:
    """Read operands as a unit would cast them."""
    if isinstance(format, FloatFormat) and format.nans:
        nan = "error"  # never happens: the format has NaN
    return lambda x: Read(quantize(x, format, nan=nan))


class Straight(Function):
    """A change of numbers that gradients pass unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """The changed numbers."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            return change(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient as it is."""
        return gradient, None
