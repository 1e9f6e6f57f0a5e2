"""Hardware cost: the slides' figures as they stand, the seven conditions on the model, and what it says of itself."""

import math

import pytest

from shoal.errors import UserError
from shoal.numerics import FixedFormat, FloatFormat, operand_format, parse
from shoal.numerics.formats.types import Scalar
from shoal.numerics.hardware.area import (
    Area,
    accumulator_area,
    converter_area,
    datapath_of,
    fits,
    mac_cost,
    multiplier_area,
)
from shoal.numerics.hardware.energy import energy
from shoal.numerics.mac.datapath import Datapath

# The slides once more, typed apart from shoal/numerics/hardware/tables.py
MULTIPLIERS = {
    "fp32": (374, 2), "fp16": (195, 1), "bf16": (180, 1), "E6M3:1": (115, 0), "E5M3:1": (86, 0), "E4M3": (78, 0),
    "Q16.16": (279, 4), "Q8.8": (106, 1), "Q7.7": (93, 1), "Q6.6": (81, 1),
}  # fmt: skip
ACCUMULATORS = [  # multiplier input in CFG-5, its output, LUTs of the accumulator, LUTs of the converter to Q8.13
    ("E6M3", "E7M7", 255, 116), ("E6M2", "E7M5", 185, 103), ("E6M1", "E7M3", 187, 72),
    ("E5M3", "E6M7", 242, 97), ("E5M2", "E6M5", 187, 81), ("E5M1", "E6M3", 165, 67),
]  # fmt: skip
FIXED_ACCUMULATORS = {"Q16.16": 89, "Q8.13": 55, "Q8.8": 43, "Q7.7": 35, "Q6.6": 32}
SYSTEMS = {
    "fp32+fp32": (58_420, 320, 0.0),
    "E5M2:5+E6M5": (42_640, 0, 27.0),
    "E5M2:5+Q8.13": (43_471, 0, 25.6),
    "E5M2:5+Q11.13": (44_876, 0, 23.2),
}
FLOATS = [FloatFormat(e, m) for e in range(2, 9) for m in range(1, 24)]
SMALL_FLOATS = [FloatFormat(e, m) for e in range(2, 9) for m in range(1, 4)]


def known(area: Area | None, luts: int, dsps: int = 0) -> bool:
    return area is not None and (area.luts, area.dsps, area.kind, area.error) == (luts, dsps, "tabulated", 0.0)


def square(operand: Scalar, accumulator: Scalar, cfg: int | None = None) -> Datapath:
    """The datapath of a unit with one operand format."""
    return Datapath((operand, operand), accumulator, cfg)


# (i) the tables


@pytest.mark.parametrize("name", MULTIPLIERS)
def test_tabulated_multipliers(name: str) -> None:
    assert known(multiplier_area(datapath_of(name)), *MULTIPLIERS[name])


def test_the_fp32_multiplier_without_dsps() -> None:
    assert known(multiplier_area(datapath_of("fp32"), dsps=False), 987, 0)
    system = mac_cost("fp32", dsps=False).system
    assert (system.luts, system.dsps, system.kind) == (58_420 + 64 * (987 - 374), 320 - 64 * 2, "extrapolated")


@pytest.mark.parametrize(("operand", "output", "accumulator", "converter"), ACCUMULATORS)
def test_tabulated_float_accumulators_and_converters(
    operand: str, output: str, accumulator: int, converter: int
) -> None:
    design = datapath_of(f"{operand}:5")
    assert design.accumulator == parse(output)
    assert known(mac_cost(design).accumulator, accumulator)
    assert mac_cost(design).converter is None
    fixed = mac_cost(f"{operand}:5+Q8.13")
    assert known(fixed.converter, converter)
    assert known(fixed.accumulator, 55)


def test_tabulated_fixed_and_fp32_accumulators() -> None:
    for name, luts in FIXED_ACCUMULATORS.items():
        assert known(mac_cost(f"E5M2:5+{name}").accumulator, luts)
        assert known(mac_cost(f"Q8.8+{name}").accumulator, luts)
    assert known(mac_cost("fp32").accumulator, 189, 2)
    assert known(
        accumulator_area(FixedFormat(7, 13, sign_extra=True)), 55
    )  # the same 21 bits, the point in the same place


@pytest.mark.parametrize("name", SYSTEMS)
def test_tabulated_systems_and_their_savings(name: str) -> None:  # and condition (vii)
    luts, dsps, saving = SYSTEMS[name]
    cost = mac_cost(name)
    assert known(cost.system, luts, dsps)
    assert round(100 * cost.saving, 1) == saving
    assert (cost.array.luts, cost.array.dsps) == (64 * cost.unit.luts, 64 * cost.unit.dsps)
    assert math.isclose(cost.array.luts + cost.surroundings.luts, luts)
    assert cost.array.dsps + cost.surroundings.dsps == dsps
    parts = (cost.multiplier, cost.converter, cost.accumulator)
    assert math.isclose(cost.unit.luts, sum(part.luts for part in parts if part))


def test_options_that_do_not_change_the_area() -> None:
    plain = mac_cost("E5M2:5+E6M5")
    for same in (
        square(FloatFormat(5, 2), FloatFormat(6, 5), 5),
        square(operand_format(FloatFormat(5, 2), 5), FloatFormat(6, 5), 5),
        datapath_of(" e5m2:5 + E6M5 "),
        datapath_of("E5M2:5*E5M2:5+E6M5"),
    ):
        assert mac_cost(same) == mac_cost(same, dsps=False) == plain
    assert mac_cost("E5M2:5(bias=16)+E6M5(bias=32)").system == plain.system
    assert mac_cost("E5M2:5(bias=16)+Q8.12").system == mac_cost("E5M2:5+Q8.12").system


def test_fits_are_labelled_interpolated_or_extrapolated() -> None:
    kinds = {
        "E7M4": "interpolated", "E6M6": "interpolated", "E5M5": "extrapolated", "E8M7": "extrapolated",
        "Q8.12": "interpolated", "Q11.13": "interpolated", "Q6.5": "extrapolated", "Q17.16": "extrapolated",
    }  # fmt: skip
    for name, kind in kinds.items():
        area = mac_cost(f"E5M2:5+{name}").accumulator
        assert area.kind == kind
        assert area.error is not None
        assert area.error > 0
    multipliers = {"E7M3": "extrapolated", "E6M3": "tabulated", "E6M2": "extrapolated", "Q8.9": "interpolated"}
    multipliers |= {"E8M10": "interpolated", "E7M10": "interpolated", "E5M7": "extrapolated", "E6M3:2": "extrapolated"}
    for name, kind in multipliers.items():
        assert multiplier_area(datapath_of(name)).kind == kind, name
    assert multiplier_area(datapath_of("E6M12"), dsps=False).kind == "interpolated"
    assert mac_cost("E5M2:5+Q8.12").system.kind == "interpolated"
    assert mac_cost("E5M2:5+E6M6").system.kind == "interpolated"
    assert mac_cost("E5M2:5+E5M5").system.kind == "extrapolated"
    assert mac_cost("E5M2:5+Q12.13").system.kind == "extrapolated"
    assert mac_cost("E5M2:5+E6M5", pes=128).system.kind == "extrapolated"
    assert mac_cost("Q8.8+Q8.8").system.kind == "extrapolated"
    assert mac_cost("Q8.8+Q8.8").unit.kind == "tabulated"
    assert mac_cost("E7M2:5+Q8.13").converter == converter_area(datapath_of("E7M2:5+Q8.13"))
    assert converter_area(datapath_of("E5M2:3+Q8.13")) == converter_area(datapath_of("E5M2:5+Q8.13"))
    assert converter_area(datapath_of("E6M3:1+Q8.13")).kind == "tabulated"  # type: ignore[union-attr]  # product E6M3
    wider = converter_area(datapath_of("E5M2:5+Q11.13"))
    assert wider is not None
    assert (wider.luts, wider.kind) == (81, "extrapolated")
    assert math.isclose(wider.error or 0, 81 * 3 / 21)


# (ii) and (iii) multipliers


def test_configurations_save_area_step_by_step() -> None:
    for format in FLOATS:
        luts = [multiplier_area(square(format, format, cfg)).luts for cfg in range(1, 7)]
        assert luts[:5] == sorted(luts[:5], reverse=True)
        assert max(luts[4:]) < 0.5 * luts[0]
        assert min(luts) > 0


def test_dsp_counts_of_floats() -> None:
    for cfg in range(1, 7):
        assert all(multiplier_area(square(format, format, cfg)).dsps == 0 for format in SMALL_FLOATS)
    wide = [multiplier_area(square(FloatFormat(8, m), FloatFormat(8, 23))).dsps for m in range(4, 24)]
    fixed = [multiplier_area(datapath_of(f"Q4.{f}")).dsps for f in range(1, 29)]
    assert wide == sorted(wide)
    assert fixed == sorted(fixed)
    assert (wide[0], wide[-1], fixed[0], fixed[-1]) == (1, 2, 1, 4)
    assert all(multiplier_area(datapath_of(f"E8M{m}"), dsps=False).dsps == 0 for m in range(1, 24))


# (iv) to (vi) accumulators and systems


def test_fixed_accumulators_are_smaller_than_float_ones_with_their_converter() -> None:
    e6m5, q8_13 = mac_cost("E5M2:5+E6M5"), mac_cost("E5M2:5+Q8.13")
    assert math.isclose(e6m5.unit.luts - q8_13.unit.luts, 51)
    assert math.isclose(e6m5.array.luts - q8_13.array.luts, 3_264)
    for format in SMALL_FLOATS:
        one, other = mac_cost(square(format, parse("Q8.13"), 5)), mac_cost(f"E{format.exponent}M{format.mantissa}:5")
        assert one.unit.luts < other.unit.luts, format
        assert one.accumulator.luts < other.accumulator.luts


def test_fixed_point_system_is_larger() -> None:
    e6m5, q8_13 = mac_cost("E5M2:5+E6M5"), mac_cost("E5M2:5+Q8.13")
    assert q8_13.system.luts - e6m5.system.luts == 831
    downstream = q8_13.surroundings.luts - e6m5.surroundings.luts
    assert math.isclose(downstream, 4_095)
    assert round(downstream / (21 - 12) / 64, 1) == 7.1
    near = mac_cost("E5M2:5+Q8.12"), mac_cost("E5M2:5+Q8.14")  # and so it is for the neighbours that are fitted
    assert all(cost.system.luts > e6m5.system.luts for cost in near)


def test_three_more_integer_bits() -> None:
    q8_13, q11_13 = mac_cost("E5M2:5+Q8.13"), mac_cost("E5M2:5+Q11.13")
    assert q11_13.system.luts - q8_13.system.luts == 1_405
    assert round(1_405 / 3 / 64, 1) == 7.3
    assert 2.5 < (q11_13.accumulator.luts - q8_13.accumulator.luts) / 3 < 3.5


def test_surroundings_of_the_fp32_system() -> None:
    fp32 = mac_cost("fp32")
    assert (fp32.surroundings.luts, fp32.surroundings.dsps) == (22_388, 64)


# shape of the model


def test_area_is_monotonic_in_the_number_of_bits() -> None:
    widths = [accumulator_area(FixedFormat(8, f)).luts for f in range(1, 25)]
    assert widths == sorted(widths)
    systems = [mac_cost(f"E5M2:5+Q{i}.13").system.luts for i in range(3, 20)]
    assert systems == sorted(systems)
    for m in (0, 1, 2, 3):
        by_exponent = [
            multiplier_area(square(FloatFormat(e, m, nans=m > 0), FloatFormat(8, 23), 1 if m else 4)).luts
            for e in range(2, 9)
        ]
        assert by_exponent == sorted(by_exponent)
    for e in range(2, 9):
        for few in (range(1, 4), range(4, 24)):  # without and with DSPs
            luts = [multiplier_area(square(FloatFormat(e, m), FloatFormat(8, 23))).luts for m in few]
            assert luts == sorted(luts)
    for fit in fits():
        slopes = fit.coefficients[1:]
        assert all(slopes > 0) or fit.name == "fixed multiplier"  # a parabola that rises from W = 1 on


def test_every_cost_is_positive() -> None:
    accumulators = [FloatFormat(2, 1), FloatFormat(8, 23), FloatFormat(11, 52), FixedFormat(1, 1), FixedFormat(27, 27)]
    for operand in (FloatFormat(1, 1), FloatFormat(2, 1), FloatFormat(10, 52), *SMALL_FLOATS):
        for accumulator in accumulators:
            for cfg in (1, 5):
                cost = mac_cost(square(operand, accumulator, cfg), pes=7)
                areas = [cost.multiplier, cost.converter, cost.accumulator, cost.unit, cost.array, cost.system]
                assert all(area.luts > 0 and area.dsps >= 0 and math.isfinite(area.luts) for area in areas if area)
    assert multiplier_area(square(FixedFormat(1, 1), FixedFormat(1, 1))).luts > 0


def test_larger_arrays() -> None:
    few, many = mac_cost("E5M2:5+E6M5", pes=64), mac_cost("E5M2:5+E6M5", pes=128)
    assert many.array.luts == 2 * few.array.luts
    assert few.system.luts < many.system.luts < 2 * few.system.luts
    assert mac_cost("fp32", pes=128).system.dsps == 640


def test_two_operand_formats() -> None:
    mixed = datapath_of("E4M3*E5M2:5+E6M6")
    assert mixed.operands == (parse("E4M3:5"), parse("E5M2:5"))
    assert datapath_of("E4M3*E5M2:5") == mixed
    one, other = (multiplier_area(datapath_of(name)) for name in ("E4M3:5", "E5M2:5"))
    area = multiplier_area(mixed)
    assert (area.luts, area.kind) == ((one.luts + other.luts) / 2, "extrapolated")
    assert multiplier_area(datapath_of("fp16*E4M3+fp32")).dsps == 1
    assert energy(mixed).multiply == (energy("E4M3").multiply + energy("E5M2").multiply) / 2


def test_wrong_arrays_are_refused() -> None:
    with pytest.raises(UserError, match="without DSPs"):
        mac_cost("Q8.8+Q8.8", dsps=False)
    for pes in (0, -1, 2**40):
        with pytest.raises(UserError, match="`pes` is"):
            mac_cost("fp32", pes=pes)
    with pytest.raises(UserError, match=r"`pes` is .* must be a whole number"):
        mac_cost("fp32", pes=2.5)  # type: ignore[arg-type]
