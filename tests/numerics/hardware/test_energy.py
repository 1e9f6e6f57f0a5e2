"""Energy and silicon of operations: the slides' figures, and power laws in between."""

import pytest

from shoal.errors import UserError
from shoal.numerics import FloatFormat, parse
from shoal.numerics.hardware.energy import access_energy, energy, silicon_area


def test_tabulated_energies_and_areas_of_operations() -> None:
    table = {
        "Q8.0+Q8.0": (0.2, 0.03, 282, 36), "Q16.16+Q16.16": (3.1, 0.1, 3495, 137),
        "fp16+fp16": (1.1, 0.4, 1640, 1360), "fp32+fp32": (3.7, 0.9, 7700, 4184),
    }  # fmt: skip
    for name, (multiply, add, multiplier, adder) in table.items():
        assert (energy(name).multiply, energy(name).add, energy(name).kind) == (multiply, add, "tabulated")
        assert energy(name).total == multiply + add
        assert (silicon_area(name).multiply, silicon_area(name).add) == (multiplier, adder)
    assert round(3.7 / 0.2, 1) == 18.5  # the reductions that the slides print
    assert round(energy("fp32").add / energy("Q8.0").add) == 30
    assert round(silicon_area("fp32").multiply / silicon_area("Q8.0").multiply) == 27
    assert round(silicon_area("fp32").add / silicon_area("Q8.0").add) == 116


def test_interpolated_energies() -> None:
    assert energy("Q8.8+Q8.13").kind == "interpolated"
    assert energy("E5M2:5+Q8.13").kind == "extrapolated"
    assert energy("E8M10+fp32").kind == "interpolated"
    assert energy("E8M10").multiply == pytest.approx(1.1)  # as many significant bits as FP16
    wider = [energy(f"E8M{m}").total for m in range(1, 24)]
    assert wider == sorted(wider)
    assert 0.2 < energy("Q8.8").multiply < 3.1


def test_energy_of_memory_access() -> None:
    assert access_energy(parse("fp32"), "8KB") == (5.0, 5.0)  # type: ignore[arg-type]
    assert access_energy(parse("E5M2"), "DRAM") == (1300 / 8, 2600 / 8)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="`memory` 'tape' is not known"):
        access_energy(FloatFormat(5, 2), "tape")
