"""Names of schemes: `hfp8`, a MAC unit, and either with other fields after semicolons."""

from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from shoal.errors import UserError, check_choice, printable
from shoal.numerics.mac.unit import MacUnit, parse_mac
from shoal.numerics.rounding.plan import FLOAT32 as FLOAT32_NUMBERS
from shoal.numerics.rounding.plan import fits
from shoal.numerics.schemes.cast import Cast
from shoal.numerics.schemes.loss_scale import shortest
from shoal.numerics.schemes.published import SCHEMES
from shoal.numerics.schemes.scheme import CASTS, FLOAT32, NEVER, UNITS, Scheme

EXAMPLES = "hfp8, E5M2:5+E6M5 and 'hfp8; master=E6M9, rounding=stochastic; update=compensated' are examples"
FIELDS = tuple(field.name for field in fields(Scheme) if field.name != "name")


def parse_scheme(text: "str | Scheme") -> Scheme:
    """The scheme that a text names.

    A built-in scheme or a MAC unit for all products, then fields after semicolons: `E5M2:5+E6M5; master=bf16,
    rounding=stochastic`, `s2fp8; weight_gradients=float32`, `swalp; average_after=never`.
    """
    if isinstance(text, Scheme):
        return text
    if not isinstance(text, str):
        raise UserError(f"A scheme is written as a string such as 'hfp8' or 'E5M2:5+E6M5', not {text!r}.")
    return _parse(text)


@lru_cache(maxsize=256)
def _parse(text: str) -> Scheme:
    base, *rest = (part.strip() for part in text.split(";"))
    changes: dict[str, Any] = {}
    for part in rest:
        name, _, value = (word.strip() for word in part.partition("="))
        if not value or name in changes:
            raise UserError(
                f"'{printable(part)}' in '{printable(text)}' is not field=value, or is repeated; {EXAMPLES}."
            )
        check_choice("The field of a scheme", name, FIELDS)
        changes[name] = _value(name, value)
    return replace(_base(base), **changes)


def scheme_text(scheme: Scheme) -> str:
    """The shortest text that `parse_scheme` reads as this scheme."""
    unit = next((unit for role in UNITS if (unit := getattr(scheme, role)) is not None), None)
    if scheme.name in SCHEMES:
        base, text = SCHEMES[scheme.name], scheme.name
    elif unit is not None:
        base, text = of_unit(unit), repr(unit)
    else:
        base, text = SCHEMES["float32"], "float32"
    different = {name: getattr(scheme, name) for name in FIELDS if getattr(scheme, name) != getattr(base, name)}
    return text + "".join(f"; {name}={_text(name, value)}" for name, value in different.items())


def of_unit(unit: MacUnit) -> Scheme:
    """All products through one unit, all else in float32; operands are rounded to the unit's format, if it has one."""
    a, b = unit.multiplier.formats
    operand = Cast(a) if a == b and fits(a, FLOAT32_NUMBERS) else None
    return Scheme(
        "unit", weights=operand, inputs=operand, activation_gradients=operand,
        forward=unit, grad_input=unit, grad_weight=unit,
    )  # fmt: skip


def _base(name: str) -> Scheme:
    known = SCHEMES.get(FLOAT32[0] if name.lower() in FLOAT32 else name.lower())
    if known is not None:
        return known
    if "+" not in name:
        raise UserError(
            f"'{printable(name)}' is not a scheme; choose one of {', '.join(SCHEMES)}, or a unit such as E5M2:5+E6M5."
        )
    return of_unit(parse_mac(name))


def _value(name: str, value: str) -> Any:
    if name in (*CASTS, *UNITS, "update", "accumulators"):
        return value
    if name == "average_after" and value == NEVER:
        return None
    try:
        return float(value) if name == "average_after" else int(value)
    except ValueError:
        kind = "number" if name == "average_after" else "whole number"
        raise UserError(f"{name} is '{printable(value)}', but must be a {kind}.") from None


def _text(name: str, value: Any) -> str:
    if value is None:
        return NEVER if name == "average_after" else FLOAT32[0]
    return shortest(value) if name == "average_after" else str(value)
