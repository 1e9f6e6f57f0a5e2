"""The table of special cases in docs/numerics.md, cell by cell, in float32 and float64."""

import math
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.numerics import quantize

DOCS = Path(__file__).parents[3] / "docs" / "numerics.md"


def rows() -> list[list[str]]:
    """Heading and rows of the table."""
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| input | arguments |"))
    table = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return [table[0], *table[2:]]


def number(text: str) -> float:
    """-0, NaN, 2^-30, 1.5·2^-16, 57,344."""
    factor, _, power = text.replace("−", "-").replace(",", "").partition("2^")
    if not power:
        return float(factor)
    sign = -1.0 if factor.startswith("-") else 1.0
    return sign * float(factor.strip("-·") or 1) * 2.0 ** float(power)


HEADING, *ROWS = rows()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]} {row[1]}" for row in ROWS])
def test_special_cases_of_the_table(row: list[str], kind: type) -> None:
    arguments = eval(f"dict({row[1]})")
    x = np.array([number(row[0])], kind)
    for format, cell in zip(HEADING[2:], row[2:], strict=True):
        if cell == "refused":
            with pytest.raises(UserError):
                quantize(x, format, **arguments)
            continue
        got, wanted = float(quantize(x, format, **arguments)[0]), number(cell)
        same = (
            math.isnan(got)
            if math.isnan(wanted)
            else (got, math.copysign(1, got)) == (wanted, math.copysign(1, wanted))
        )
        assert same, f"{row[0]} to {format}: {got} instead of {cell}"


def test_table_of_special_cases_is_found() -> None:
    assert len(ROWS) >= 30
