"""Least-squares fits of the slides' tables: coefficients, residuals, standard errors."""

import pytest

from shoal.numerics.hardware.area import fits, mac_cost
from shoal.numerics.hardware.fits import Fit, within
from shoal.numerics.hardware.report import figure


def test_fits_and_residuals_match_the_tables() -> None:
    found = {fit.name: fit for fit in fits()}
    facts = {
        "fixed accumulator": ([-4.05, 2.887], [0.7, -1.6, 0.9, -1.4, 1.4]),
        "float accumulator": ([41.4, 11.0, 18.1], [9.7, -24.0, 14.2, 7.7, -11.0, 3.2]),
        "converter": ([-56.6, 15.33, 9.25], [0.5, 6.0, -6.5, -3.2, -0.7, 3.8]),
        "fixed multiplier": ([49.7, -0.106, 0.227], None),
    }
    for name, (coefficients, residuals) in facts.items():
        assert found[name].coefficients == pytest.approx(coefficients, rel=0.005)
        if residuals:
            assert list(found[name].residuals.values()) == pytest.approx(residuals, abs=0.06)
    at_m3 = found["multiplier in LUTs"]
    assert [round(at_m3((e, 3)).value, 1) for e in (4, 5, 6)] == [74.5, 93.0, 111.5]  # 0.5 + 18.5 e
    assert max(map(abs, found["surroundings"].residuals.values())) < 0.01 * 42_640


def test_errors_grow_with_the_distance_from_the_rows() -> None:
    line = Fit("line", ("1", "W"), lambda p: (1, *p), {(0,): 0.0, (1,): 1.1, (2,): 1.9, (3,): 3.0})
    inside, far = line((1,)), line((100,))
    assert inside.error is not None
    assert far.error is not None
    assert (inside.inside, far.inside) == (True, False)
    assert 0 < inside.error < far.error
    through_two = Fit("line", ("1", "W"), lambda p: (1, *p), {(0,): 0.0, (1,): 1.0})
    assert through_two((5,)).error is None
    assert mac_cost("E8M10").multiplier.error is None  # three rows, three coefficients
    assert mac_cost("E8M10").unit.error is None
    assert figure(mac_cost("E8M10").multiplier).endswith("±? i")


def test_point_within_the_convex_hull() -> None:
    square: list[tuple[int, ...]] = [(0, 0), (0, 4), (4, 0), (4, 4)]
    assert within(square, (2, 3))
    assert within(square, (4, 1))
    assert not within(square, (5, 2))
    on_a_line: list[tuple[int, ...]] = [(1, 1), (2, 2), (5, 5)]
    assert within(on_a_line, (3, 3))
    assert not within(on_a_line, (6, 6))
    assert not within(on_a_line, (2, 3))
