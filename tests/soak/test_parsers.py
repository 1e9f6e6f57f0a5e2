"""Names of formats, MAC units and encodings, right, nearly right and wild: read and written the same, or a sentence."""

import math
from random import Random

import pytest

from shoal.errors import UserError
from shoal.numerics import BlockFormat, Format, operand_format, parse, parse_mac
from shoal.numerics.formats.notation import unit_parts
from tests.soak.harness import check_sentence

FULL = 100_000
NUMBERS = ("0", "12", "23", "52", "53", "127", "1023", "-3", "007", "٣", "²", "1e3", "2.5", 20 * "9", 4400 * "9", "")
ROUNDINGS = ("nearest-even", "nearest-away", "toward-zero", "up", "down")
FIELDS = {
    "bias": ("0", "1", "4", "16", "-3", "1023", "None"),
    "subnormals": ("gradual", "normal", "zero"),
    "infinities": ("False", "true"),
    "nans": ("False", "True"),
    "signed_zero": ("False",),
    "sign_extra": ("True", "false"),
    "exponent": ("5",),
}
SETTINGS = {
    "order": ("sequential", "pairwise", "kahan", "exact", "chunked(8)", "chunked( 64 )", "chunked(n)", "chunked(0)"),
    "rounding": (*ROUNDINGS, "stochastic", "hysteresis"),
    "overflow": ("saturate", "infinity", "nan", "wrap"),
    "fused": ("True", "False"),
    "nan": ("error", "zero", "infinity"),
    "random_bits": ("1", "14", "32", "33"),
    "variant": ("A", "B", "C", "D"),
    "output": ("E5M2", "Q8.8", "E8M9(bias=3)"),
    "product_rounding": ROUNDINGS,
    "flush": ("after-rounding", "before-rounding", "subnormal-grid"),
    "product_bias": ("sum", "ieee"),
    "zero_times_infinity": ("zero", "infinity"),
    "rounded": ("True", "False"),
    "cfg": ("5",),
}
LETTERS = "EMQBFNUZemq0123456789:()+*,=./x -_\t\n\0٣²−é😀'\"\\{}%"


def small(rng: Random, high: int = 9) -> str:
    """Mostly a number that a format can have."""
    return str(rng.randrange(1, high)) if rng.random() < 0.95 else rng.choice(NUMBERS)


def words(rng: Random, choices: dict[str, tuple[str, ...]], least: int, most: int) -> list[str]:
    """Some name=value, mostly of those that belong together."""
    chosen = rng.sample(list(choices), rng.randrange(least, most + 1))
    values = [rng.choice(choices[name]) if rng.random() < 0.95 else small(rng) for name in chosen]
    return [f"{name}={value}" for name, value in zip(chosen, values, strict=True)]


def brackets(rng: Random, *fields: str) -> str:
    if rng.random() < 0.7:
        return ""
    chosen = {name: FIELDS[name] for name in fields} if rng.random() < 0.9 else FIELDS
    return f"({rng.choice((',', ', ')).join(words(rng, chosen, rng.random() < 0.9, min(2, len(chosen))))})"


def fixed(rng: Random) -> str:
    return f"Q{small(rng, 17)}.{small(rng, 17)}{brackets(rng, 'sign_extra')}"


def floating(rng: Random, cfg: str = "") -> str:
    if rng.random() < 0.1:
        return rng.choice(("fp64", "fp32", "fp16", "tf32", "bf16", "float32", "bfloat16", "BF16", "fp8")) + cfg
    plain = f"E{small(rng)}M{small(rng, 12)}"
    if rng.random() < 0.2:
        plain += f"B{small(rng, 40)}"
    if cfg or rng.random() < 0.6:
        return plain + cfg + brackets(rng, "bias")
    return plain + rng.choice(("F", "FN", "FNUZ", "")) + brackets(rng, "bias", "subnormals", "infinities", "nans")


def format_name(rng: Random) -> str:
    name = fixed(rng) if rng.random() < 0.3 else floating(rng, rng.choice(("", "", f":{rng.randrange(8)}")))
    sides = (f"/{small(rng)}", f"/{small(rng)}x{small(rng)}", "/tensor", "/row", "/", "/rows", "/2x2x2")
    return name + (rng.choice(sides) if rng.random() < 0.3 else "")


def unit_name(rng: Random) -> str:
    cfg = rng.choice(("", ":1", ":2", ":3", ":4", ":5", ":6", ":7"))
    both = rng.choice((1, 1, 1, 2, 2, 3))
    operands = [fixed(rng) for _ in range(both)] if rng.random() < 0.3 else [floating(rng, cfg) for _ in range(both)]
    accumulator = fixed(rng) if rng.random() < 0.4 else floating(rng)
    return ", ".join([f"{'*'.join(operands)}+{accumulator}", *words(rng, SETTINGS, 0, 2)])


def changed(name: str, rng: Random) -> str:
    """The name with a few letters lost, added, replaced, swapped or written twice."""
    letters = list(name)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(letters) + 1)
        letters[at:at + rng.randrange(3)] = rng.choice((
            [], [rng.choice(LETTERS)], letters[at:at + 3] * 2, letters[at:at + 2][::-1], [name[:6].swapcase()],
        ))  # fmt: skip
    return "".join(letters)


def check_codes(format: Format, rng: Random) -> None:
    """Codes are read, and what they mean is written with a code of the same meaning."""
    element = format.element if isinstance(format, BlockFormat) else format
    for code in (0, 1, 2**element.width - 1, rng.randrange(2**element.width)):
        value = element.decode(code)
        again = element.decode(element.encode(value))
        assert (value, math.copysign(1, value)) == (again, math.copysign(1, again)) or math.isnan(value) == math.isnan(
            again
        )
    assert element.decode(element.encode(element.max)) == element.max and element.min_positive > 0


@pytest.mark.slow
def test_random_names(soak):
    for case in soak.cases(FULL):
        with case:
            rng = case.rng
            read, written = rng.choice(((parse, format_name), (parse_mac, unit_name)))
            name = written(rng)
            if rng.random() < 0.3:
                name = changed(name, rng)
            cfg = rng.randrange(-1, 9) if read is parse and rng.random() < 0.2 else None
            case.story = f"{read.__name__}({name[:300]!r})" + (f", cfg={cfg}" if cfg is not None else "")
            try:
                if rng.random() < 0.1:
                    unit_parts(name)
                value = read(name)
                if cfg is not None:
                    value = operand_format(value, cfg)
            except UserError as error:
                if name.isprintable():  # what is not is for the command line to show
                    check_sentence(str(error))
                case.count("refused")
                continue
            again = read(repr(value))
            assert again == value and repr(again) == repr(value) == str(value), f"{value!r} is read as {again!r}"
            if read is parse:
                check_codes(value, rng)
            case.count("formats" if read is parse else "units")
