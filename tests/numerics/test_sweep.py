"""The sweep's errors and rates are those of the product."""

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.numerics import matmul, quantize
from shoal.numerics.hardware.area import mac_cost
from shoal.numerics.sweep import operands, sweep, sweep_result


def test_errors_and_rates() -> None:
    told = []
    (line,) = sweep(
        ["E5M2:5+Q8.13"], [96], scale=3.0, seed=4, advance=lambda amount, doing: told.append((amount, doing))
    )
    a, b = operands(96, 3.0, 4)
    assert a.shape == (64, 96) and b.shape == (96, 64) and a.std() == pytest.approx(3, rel=0.05)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    result, stats = matmul(a, b, "E5M2:5+Q8.13", stats=True)
    root = np.sqrt(np.mean(wanted**2))
    assert line.error == pytest.approx(np.sqrt(np.mean((result - wanted) ** 2)) / root)
    assert line.largest_error == pytest.approx(np.abs(result - wanted).max() / root)
    exact = quantize(a, "E5M2:5").astype(np.float64) @ quantize(b, "E5M2:5").astype(np.float64)
    assert line.sum_error == pytest.approx(np.sqrt(np.mean((result - exact) ** 2)) / root)
    assert line.saturated == stats.saturated / (64 * 96 * 64) > 0
    assert line.underflowed == stats.underflowed / (64 * 96 * 64)
    assert line.system == mac_cost("E5M2:5+Q8.13").system
    assert told == [(1, "E5M2:5+Q8.13")]


def test_all_units_get_the_same_operands_from_the_seed() -> None:
    one, other, again = (sweep(["fp32+fp32"], [16], seed=seed)[0] for seed in (1, 2, 1))
    assert one.error == again.error != other.error
    assert [line.error for line in sweep(["E4M3:5+E6M5", "fp32+fp32"], [8, 16], seed=1)][-1] == one.error


def test_a_wider_accumulator_has_smaller_errors() -> None:
    lines = sweep(["E5M2:5+E6M3", "E5M2:5+E6M5", "E5M2:5+E6M9", "E5M2:5+fp32"], [256])
    errors = [line.sum_error for line in lines]
    assert errors == sorted(errors, reverse=True) and errors[0] > 100 * errors[-1]
    result = sweep_result(lines, 1.0)
    assert [row["error"] for row in result.tables[0].records()] == [line.error for line in lines]
    (figure,) = result.figures
    points, spans = figure.panels[0].series
    assert points.values == [line.error for line in lines] and sorted(points.at) == spans.at
    assert figure.key == [f"{n}  {unit}" for n, unit in enumerate(_by_cost(lines), 1)]
    assert sweep_result(sweep(["Q4.4+E6M5"], [16]), 1.0).figures == []  # it has no cost


def _by_cost(lines):
    return [line.unit for line in sorted(lines, key=lambda line: line.system.luts)]


def test_wrong_settings_are_refused() -> None:
    for units, inner in (([], [16]), (["fp32+fp32"], []), (["fp32"], [16]), (["fp32+fp32"], [0])):
        with pytest.raises(UserError):
            sweep(units, inner)
