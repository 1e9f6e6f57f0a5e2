"""Names of formats and MAC units: what `repr` writes, the slides' notation, and other common names."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from shoal.errors import UserError
from shoal.numerics.formats.encodings import encoding, operand_format
from shoal.numerics.formats.types import BlockFormat, FixedFormat, FloatFormat, Format


class NotAFormat(UserError):
    """A name that is not of the form of any format."""


NAMES = {
    "fp64": "E11M52", "fp32": "E8M23", "fp16": "E5M10", "tf32": "E8M10", "bf16": "E8M7",
    "float64": "E11M52", "float32": "E8M23", "float16": "E5M10", "bfloat16": "E8M7",
}  # fmt: skip

_FLOAT = re.compile(r"E(\d+)M(\d+)(?:B(\d+))?(FNUZ|FN|F)?(?::([1-6]))?(\(.*\))?", re.IGNORECASE)
_FIXED = re.compile(r"Q(\d+)\.(\d+)(\(.*\))?", re.IGNORECASE)
_OPTION = re.compile(r"\s*[a-z_]+\s*=")
_WHOLE = re.compile(r"\d{1,18}")  # `int` refuses very long numbers, and none of them is a sensible length or bit count
_FINITE: dict[str, dict[str, Any]] = {
    "F": {"infinities": False, "nans": False},  # finite numbers only
    "FN": {"infinities": False},  # finite numbers and NaN
    "FNUZ": {"infinities": False, "signed_zero": False},  # finite numbers and NaN, no -0
}
_WORDS: dict[str, Any] = {"true": True, "false": False}
UNIT_EXAMPLES = "E5M2:5+E6M5, E5M2:5+Q8.13 and 'E4M3*E5M2:5+E6M9, order=pairwise' are examples"


class UnitParts(NamedTuple):
    """The parts of a MAC unit's name."""

    operands: tuple[FloatFormat | FixedFormat, ...]  # one or two formats, without the configuration
    cfg: int | None  # None if not given, as for fixed-point operands
    accumulator: FloatFormat | FixedFormat | None
    options: dict[str, bool | int | str]


def parse(text: str) -> Format:
    """The format that a text names.

    `E5M2`; with an encoding of the slides `E5M2:5`; with a bias or without infinities `E4M3FN`, `E4M3B11FNUZ`,
    `E2M1F`; by field `E5M2(bias=16, nans=False)`; `Q8.13`, `Q8.13(sign_extra=True)`; blocks `E4M3/tensor`,
    `E4M3/row`, `Q1.7/32`, `E2M5F/48x48`; and `fp64`, `fp32`, `tf32`, `fp16`, `bf16`.
    """
    if not isinstance(text, str):
        raise UserError(f"A format's name is a string such as 'E5M2' or 'Q8.13', not {text!r}.")
    return _parse(text)


def unit_parts(text: str) -> UnitParts:
    """The parts of a unit's name: operand formats `:` configuration `+` accumulator, then comma-separated name=value.

    `E5M2:5+Q8.13`, `E4M3*E5M2:5+E6M6` (two operand formats), `E5M2:5` (no accumulator), `E5M2:5+E6M5, order=pairwise`.
    The caller decides what the parts mean, and which of them are required.
    """
    if not isinstance(text, str):
        raise UserError(f"A MAC unit is written as a string such as 'E5M2:5+Q8.13', not {text!r}.")
    names, options = fields_after_commas(text, UNIT_EXAMPLES)
    multiplier, plus, accumulator = names.partition("+")
    operands = _outside_brackets(multiplier, "*")
    cfgs = {cfg.strip() for name in operands for cfg in re.findall(r":([^(]*)", name)}
    if "+" in accumulator or len(operands) > 2 or len(cfgs) > 1:
        raise UserError(f"'{text}' is not a MAC unit; {UNIT_EXAMPLES}.")
    if cfgs and not cfgs <= set("123456"):
        raise UserError(f"The cfg of '{text}' is '{cfgs.pop()}', but must be from 1 to 6.")
    return UnitParts(
        tuple(_scalar(re.sub(r":[^(]*", "", name), text) for name in operands),
        int(cfgs.pop()) if cfgs else None,
        _scalar(accumulator, text) if plus else None,
        options,
    )


def fields_after_commas(text: str, examples: str) -> tuple[str, dict[str, bool | int | str]]:
    """The text before the first comma, and the fields `name=value` after it."""
    first, *rest = _outside_brackets(text, ",")
    options: dict[str, bool | int | str] = {}
    for word in rest:
        name, _, value = (part.strip() for part in word.partition("="))
        if not value or name in options:
            raise UserError(f"'{word.strip()}' in '{text}' is not name=value, or is repeated; {examples}.")
        options[name] = _WORDS.get(value.lower(), int(value) if _WHOLE.fullmatch(value) else value)
    return first, options


def _outside_brackets(text: str, separator: str) -> list[str]:
    """Split at separators outside of parentheses."""
    return re.split(rf"{re.escape(separator)}(?![^(]*\))", text)


def _scalar(name: str, text: str) -> FloatFormat | FixedFormat:
    format = parse(name)
    if isinstance(format, BlockFormat):
        raise UserError(f"'{text}' has blocks; a unit multiplies and adds single elements, so write {format.element}.")
    return format


@lru_cache(maxsize=512)
def _parse(text: str) -> Format:
    name, slash, over = text.strip().partition("/")
    plain, colon, cfg = name.partition(":")
    element = _element(NAMES.get(plain.lower(), plain) + colon + cfg, text)
    if not slash:
        return element
    sides = over.split("x")
    if over in ("tensor", "row"):
        return BlockFormat(element, over)
    if len(sides) <= 2 and all(map(_WHOLE.fullmatch, sides)):
        return BlockFormat(element, int(over) if len(sides) == 1 else (int(sides[0]), int(sides[1])))
    raise UserError(f"'{text}' shares over '{over}'; tensor, row, a length (32) or a tile (48x48) are possible.")


def _element(name: str, text: str) -> FloatFormat | FixedFormat:
    try:
        if match := _FLOAT.fullmatch(name):
            exponent, mantissa, bias, finite, cfg, words = match.groups()
            fields: dict[str, Any] = {"bias": int(bias)} if bias else {}
            fields |= _FINITE[finite.upper()] if finite else {}
            fields |= _fields(words)
            if cfg:
                chosen = encoding(int(cfg))
                fields = {"nans": chosen.nan_code, "subnormals": chosen.subnormal_inputs} | fields
            made = FloatFormat(int(exponent), int(mantissa), **fields)
            return operand_format(made, int(cfg)) if cfg else made
        if match := _FIXED.fullmatch(name):
            integer, fraction, words = match.groups()
            return FixedFormat(int(integer), int(fraction), **_fields(words))
    except (TypeError, ValueError):
        pass  # an unknown or repeated field in the parentheses
    raise NotAFormat(f"'{text}' is not a format; E5M2, E5M2:5, E4M3FN, Q8.13, Q1.7/row and bf16 are examples.")


def _fields(words: str | None) -> dict[str, Any]:
    """{'bias': 16, 'nans': False} of '(bias=16, nans=False)'."""
    fields: dict[str, Any] = {}
    for word in words[1:-1].split(",") if words else []:
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or name in fields or name in ("exponent", "mantissa", "integer", "fraction"):
            raise ValueError(word)
        fields[name] = _WORDS.get(value.lower(), value if value.isalpha() else int(value))
    return fields


def split_list(words: Sequence[str]) -> tuple[str, ...]:
    """The units or schemes of a command line: several words, or one with commas.

    A comma separates them, unless an option such as `order=pairwise` follows it.
    """
    found: list[str] = []
    for word in words:
        before = len(found)
        for piece in word.split(","):
            if _OPTION.match(piece) and len(found) > before:
                found[-1] += f",{piece}"
            elif piece.strip():
                found.append(piece.strip())
    return tuple(found)
