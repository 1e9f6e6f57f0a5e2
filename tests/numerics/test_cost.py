"""Hardware cost: the slides' figures as they stand, the seven conditions on the model, and what it says of itself."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.errors import UserError
from shoal.numerics import FixedFormat, FloatFormat, operand_format, parse
from shoal.numerics.hardware.area import Area, accumulator_area, converter_area, fits, mac_cost, multiplier_area
from shoal.numerics.hardware.design import Design, parse_design
from shoal.numerics.hardware.energy import access_energy, energy, silicon_area
from shoal.numerics.hardware.fits import Fit, within
from shoal.numerics.hardware.report import compare, cost_json, figure, fit_lines

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


# (i) the tables


@pytest.mark.parametrize("name", MULTIPLIERS)
def test_tabulated_multipliers(name: str) -> None:
    assert known(multiplier_area(parse_design(name)), *MULTIPLIERS[name])


def test_the_fp32_multiplier_without_dsps() -> None:
    without = replace(parse_design("fp32"), dsps=False)
    assert known(multiplier_area(without), 987, 0)
    system = mac_cost(without).system
    assert (system.luts, system.dsps, system.kind) == (58_420 + 64 * (987 - 374), 320 - 64 * 2, "extrapolated")


@pytest.mark.parametrize(("operand", "output", "accumulator", "converter"), ACCUMULATORS)
def test_tabulated_float_accumulators_and_converters(
    operand: str, output: str, accumulator: int, converter: int
) -> None:
    design = parse_design(f"{operand}:5")
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


def test_what_does_not_change_the_area() -> None:
    plain = mac_cost("E5M2:5+E6M5")
    for same in (
        Design(FloatFormat(5, 2), FloatFormat(6, 5), 5),
        Design(operand_format(FloatFormat(5, 2), 5), FloatFormat(6, 5)),
        Design(FloatFormat(5, 2), FloatFormat(6, 5), 5, dsps=False),
        parse_design(" e5m2:5 + E6M5 "),
        parse_design("E5M2:5*E5M2:5+E6M5"),
    ):
        assert mac_cost(same) == plain
    assert mac_cost("E5M2:5(bias=16)+E6M5(bias=32)").system == plain.system
    assert mac_cost("E5M2:5(bias=16)+Q8.12").system == mac_cost("E5M2:5+Q8.12").system


def test_fits_speak_only_between_the_rows_and_say_so() -> None:
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
        assert multiplier_area(parse_design(name)).kind == kind, name
    assert multiplier_area(replace(parse_design("E6M12"), dsps=False)).kind == "interpolated"
    assert mac_cost("E5M2:5+Q8.12").system.kind == "interpolated"
    assert mac_cost("E5M2:5+E6M6").system.kind == "interpolated"
    assert mac_cost("E5M2:5+E5M5").system.kind == "extrapolated"
    assert mac_cost("E5M2:5+Q12.13").system.kind == "extrapolated"
    assert mac_cost("E5M2:5+E6M5", pes=128).system.kind == "extrapolated"
    assert mac_cost("Q8.8+Q8.8").system.kind == "extrapolated"
    assert mac_cost("Q8.8+Q8.8").unit.kind == "tabulated"
    assert mac_cost("E7M2:5+Q8.13").converter == converter_area(parse_design("E7M2:5+Q8.13"))
    assert converter_area(parse_design("E5M2:3+Q8.13")) == converter_area(parse_design("E5M2:5+Q8.13"))
    assert converter_area(parse_design("E6M3:1+Q8.13")).kind == "tabulated"  # type: ignore[union-attr]  # product E6M3
    wider = converter_area(parse_design("E5M2:5+Q11.13"))
    assert wider is not None
    assert (wider.luts, wider.kind) == (81, "extrapolated")
    assert math.isclose(wider.error or 0, 81 * 3 / 21)


# (ii) and (iii) multipliers


def test_configurations_save_area_step_by_step_and_more_than_half_in_the_end() -> None:
    for format in FLOATS:
        luts = [multiplier_area(Design(format, format, cfg)).luts for cfg in range(1, 7)]
        assert luts[:5] == sorted(luts[:5], reverse=True)
        assert max(luts[4:]) < 0.5 * luts[0]
        assert min(luts) > 0


def test_small_floats_need_no_dsp_and_the_counts_of_others_do_not_fall() -> None:
    for cfg in range(1, 7):
        assert all(multiplier_area(Design(format, format, cfg)).dsps == 0 for format in SMALL_FLOATS)
    wide = [multiplier_area(Design(FloatFormat(8, m), FloatFormat(8, 23))).dsps for m in range(4, 24)]
    fixed = [multiplier_area(parse_design(f"Q4.{f}")).dsps for f in range(1, 29)]
    assert wide == sorted(wide)
    assert fixed == sorted(fixed)
    assert (wide[0], wide[-1], fixed[0], fixed[-1]) == (1, 2, 1, 4)
    assert all(multiplier_area(replace(parse_design(f"E8M{m}"), dsps=False)).dsps == 0 for m in range(1, 24))


# (iv) to (vi) accumulators and systems


def test_fixed_accumulators_are_smaller_than_float_ones_with_their_converter() -> None:
    e6m5, q8_13 = mac_cost("E5M2:5+E6M5"), mac_cost("E5M2:5+Q8.13")
    assert math.isclose(e6m5.unit.luts - q8_13.unit.luts, 51)
    assert math.isclose(e6m5.array.luts - q8_13.array.luts, 3_264)
    for format in SMALL_FLOATS:
        one, other = mac_cost(Design(format, parse("Q8.13"), 5)), mac_cost(f"E{format.exponent}M{format.mantissa}:5")
        assert one.unit.luts < other.unit.luts, format
        assert one.accumulator.luts < other.accumulator.luts


def test_the_fixed_system_is_larger_all_the_same() -> None:
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


def test_the_fp32_system_has_a_base_of_its_own() -> None:
    fp32 = mac_cost("fp32")
    assert (fp32.surroundings.luts, fp32.surroundings.dsps) == (22_388, 64)


# shape of the model


def test_more_bits_cost_more_where_only_fits_or_only_rows_speak() -> None:
    widths = [accumulator_area(FixedFormat(8, f)).luts for f in range(1, 25)]
    assert widths == sorted(widths)
    systems = [mac_cost(f"E5M2:5+Q{i}.13").system.luts for i in range(3, 20)]
    assert systems == sorted(systems)
    for m in (0, 1, 2, 3):
        by_exponent = [
            multiplier_area(Design(FloatFormat(e, m, nans=m > 0), FloatFormat(8, 23))).luts for e in range(2, 9)
        ]
        assert by_exponent == sorted(by_exponent)
    for e in range(2, 9):
        for few in (range(1, 4), range(4, 24)):  # without and with DSPs
            luts = [multiplier_area(Design(FloatFormat(e, m), FloatFormat(8, 23))).luts for m in few]
            assert luts == sorted(luts)
    for fit in fits():
        slopes = fit.coefficients[1:]
        assert all(slopes > 0) or fit.name == "fixed multiplier"  # a parabola that rises from W = 1 on


def test_every_figure_is_a_positive_number() -> None:
    accumulators = [FloatFormat(2, 1), FloatFormat(8, 23), FloatFormat(11, 52), FixedFormat(1, 1), FixedFormat(27, 27)]
    for operand in (FloatFormat(1, 1), FloatFormat(2, 1), FloatFormat(10, 52), *SMALL_FLOATS):
        for accumulator in accumulators:
            for cfg in (1, 5):
                cost = mac_cost(Design(operand, accumulator, cfg), pes=7)
                areas = [cost.multiplier, cost.converter, cost.accumulator, cost.unit, cost.array, cost.system]
                assert all(area.luts > 0 and area.dsps >= 0 and math.isfinite(area.luts) for area in areas if area)
    assert multiplier_area(Design(FixedFormat(1, 1), FixedFormat(1, 1))).luts > 0


def test_larger_arrays() -> None:
    few, many = mac_cost("E5M2:5+E6M5", pes=64), mac_cost("E5M2:5+E6M5", pes=128)
    assert many.array.luts == 2 * few.array.luts
    assert few.system.luts < many.system.luts < 2 * few.system.luts
    assert mac_cost("fp32", pes=128).system.dsps == 640


def test_two_operand_formats() -> None:
    mixed = parse_design("E4M3*E5M2:5+E6M6")
    assert (mixed.operand, mixed.second) == (parse("E4M3:5"), parse("E5M2:5"))
    assert parse_design("E4M3*E5M2:5") == mixed
    one, other = (multiplier_area(parse_design(name)) for name in ("E4M3:5", "E5M2:5"))
    area = multiplier_area(mixed)
    assert (area.luts, area.kind) == ((one.luts + other.luts) / 2, "extrapolated")
    assert multiplier_area(parse_design("fp16*E4M3+fp32")).dsps == 1
    assert energy(mixed).multiply == (energy("E4M3").multiply + energy("E5M2").multiply) / 2


@pytest.mark.parametrize(
    "text", ["E5M2+E6M5", "E5M2:2+Q8.13", "E5M2:3(bias=16)+E6M5", "E4M3:5*E5M2:5+E6M6", "Q8.8+Q8.13"]
)
def test_designs_are_read_as_they_are_written(text: str) -> None:
    assert str(parse_design(text)) == text
    assert parse_design(str(parse_design(text))) == parse_design(text)


# the fits themselves


def test_fits_and_their_residuals_are_those_of_the_facts() -> None:
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


def test_errors_grow_with_the_distance_and_are_not_invented() -> None:
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


def test_within() -> None:
    square: list[tuple[int, ...]] = [(0, 0), (0, 4), (4, 0), (4, 4)]
    assert within(square, (2, 3))
    assert within(square, (4, 1))
    assert not within(square, (5, 2))
    on_a_line: list[tuple[int, ...]] = [(1, 1), (2, 2), (5, 5)]
    assert within(on_a_line, (3, 3))
    assert not within(on_a_line, (6, 6))
    assert not within(on_a_line, (2, 3))


# energy


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


def test_energies_in_between() -> None:
    assert energy("Q8.8+Q8.13").kind == "interpolated"
    assert energy("E5M2:5+Q8.13").kind == "extrapolated"
    assert energy("E8M10+fp32").kind == "interpolated"
    assert energy("E8M10").multiply == pytest.approx(1.1)  # as many significant bits as FP16
    wider = [energy(f"E8M{m}").total for m in range(1, 24)]
    assert wider == sorted(wider)
    assert 0.2 < energy("Q8.8").multiply < 3.1


def test_memory() -> None:
    assert access_energy(parse("fp32"), "8KB") == (5.0, 5.0)  # type: ignore[arg-type]
    assert access_energy(parse("E5M2"), "DRAM") == (1300 / 8, 2600 / 8)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="memory 'tape' is not known"):
        access_energy(FloatFormat(5, 2), "tape")


# for the command line


def test_the_comparison() -> None:
    comparison = compare(["fp32", "E5M2:5+E6M5", "E5M2:5+Q8.13", "E5M2:5+Q8.12"])
    header, fp32, e6m5, q8_13, q8_12 = comparison.lines
    assert len({len(line) for line in comparison.lines}) == 1
    assert fp32 == ("E8M23+E8M23", "374", "–", "189", "563", "36,032", "58,420", "0.0%", "320", "4.6")
    assert dict(zip(header, e6m5, strict=True))["system"] == "42,640"
    assert dict(zip(header, q8_13, strict=True)) | {"converter": "81", "accumulator": "55", "saved": "25.6%"} == dict(
        zip(header, q8_13, strict=True)
    )
    assert dict(zip(header, q8_12, strict=True))["accumulator"] == "54 ±2 i"
    assert any("CFG-2 to 6" in note for note in comparison.notes)
    assert len(compare(["fp32"]).notes) == 2
    assert json.loads(json.dumps(comparison.json)) == comparison.json
    assert (
        comparison.json[1]["areas"]["system"] | {"luts": 42_640, "kind": "tabulated"}
        == (comparison.json[1]["areas"]["system"])
    )
    assert cost_json(mac_cost("E5M2:5+E6M5"))["areas"]["converter"] is None
    assert len(fit_lines()) == 1 + len(fits())


def test_the_documentation_shows_what_is_computed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text(encoding="utf-8")
    for line in fit_lines()[1:]:
        assert f"| {line[1]} | {line[2]} |" in text
    for row in compare(["fp32", "E5M2:5+E6M5", "E5M2:5+Q8.13", "E5M2:5+Q11.13"]).lines[1:]:
        assert f"| {' | '.join(row)} |" in text


# wrong inputs


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "'' is not a format"),
        ("E5M2:5+", "'' is not a format"),
        ("E5M2:5+E6M5+E6M5", "is not a MAC unit"),
        ("E5M2*E5M2*E5M2+E6M5", "is not a MAC unit"),
        ("E5M2:4*E5M2:5+E6M5", "is not a MAC unit"),
        ("E5M2:7+E6M5", "must be from 1 to 6"),
        ("E5M2:55+E6M5", "'55', but must be from 1 to 6"),
        ("E5M2:+E6M5", "must be from 1 to 6"),
        ("E5M2:5+hello", "'hello' is not a format"),
        ("E5M60:5+E6M5", "E5M60 is not possible"),
        ("Q8.8+E6M5", "no figures"),
        ("Q8.8:5+Q8.8", "encodings of floating-point operands"),
        ("Q8.8*E5M2+Q8.8", "cannot be multiplied"),
        ("E4M3FN+fp32", "give the plain E4M3"),
        ("E4M3/row+fp32", "has blocks"),
        ("E4M3+E4M3/row", "has blocks"),
        ("E5M2:5+E6M5, order=pairwise", "leave out what is after the comma"),
        ("E10M30:5", "E11M61 is not possible"),
        (7, "not 7"),
        (None, "not None"),
    ],
)
def test_wrong_units(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as error:
        mac_cost(text)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


def test_wrong_designs_and_arrays() -> None:
    with pytest.raises(UserError, match="The operand of a MAC unit"):
        Design("E5M2", FloatFormat(6, 5))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="The accumulator of a MAC unit"):
        Design(FloatFormat(5, 2), parse("E6M5/row"))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"cfg is .* must be a whole number"):
        Design(FloatFormat(5, 2), FloatFormat(6, 5), "5")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="without DSPs"):
        Design(FixedFormat(8, 8), FixedFormat(8, 8), dsps=False)
    for pes in (0, -1, 2**40):
        with pytest.raises(UserError, match="pes is"):
            mac_cost("fp32", pes=pes)
    with pytest.raises(UserError, match=r"pes is .* must be a whole number"):
        mac_cost("fp32", pes=2.5)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="at least one MAC unit"):
        compare([])
    with pytest.raises(UserError, match="at least one MAC unit"):
        compare("E5M2:5+E6M5")
