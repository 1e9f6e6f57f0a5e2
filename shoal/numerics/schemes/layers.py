"""Accumulators of single layers, in place of those of a scheme's units: `stem.forward=E6M7, classify=E5M5`."""

import re

from shoal.errors import UserError, printable
from shoal.numerics.formats.notation import parse
from shoal.numerics.formats.types import FixedFormat, FloatFormat, Scalar

PRODUCTS = ("forward", "grad_input", "grad_weight")
Accumulators = dict[tuple[str, str], Scalar]
"""By layer and product."""


def parse_accumulators(text: str) -> Accumulators:
    """`layer.product=format` or, for all its products, `layer=format`, after commas; a product's own entry wins."""
    entries = [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]
    whole: Accumulators = {}
    single: Accumulators = {}
    for entry in entries:
        name, _, format = (word.strip() for word in entry.partition("="))
        accumulator = parse(format) if name and format else None
        if not isinstance(accumulator, FloatFormat | FixedFormat):
            raise UserError(
                f"'{printable(entry)}' in accumulators is not layer=format, such as stem.forward=E6M7 or out=Q8.13."
            )
        layer, _, product = name.rpartition(".")
        if layer and product in PRODUCTS:
            single[layer, product] = accumulator
        else:
            whole |= {(name, product): accumulator for product in PRODUCTS}
    return whole | single


def accumulators_text(accumulators: Accumulators) -> str:
    """What `parse_accumulators` reads, in one form."""
    return ", ".join(f"{layer}.{product}={format!r}" for (layer, product), format in accumulators.items())
