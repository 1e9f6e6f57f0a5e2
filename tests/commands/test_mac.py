"""`shoal mac` and the benches of numerics: tables, JSON, pictures, and a sentence for what is nonsense."""

import json
import os

import pytest

from shoal.bench import gemm, quantize
from shoal.numerics import parse, sweep
from shoal.numerics.hardware import report
from shoal.results import Result
from tests.cli.helpers import strict


@pytest.fixture(autouse=True)
def workplace(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")  # tables in one part


def cells(out):
    """The words between the lines of printed tables, row by row."""
    return [[cell.strip() for cell in line.strip("│┃ ").replace("┃", "│").split("│")] for line in out.splitlines()]


# ---- describe ------------------------------------------------------------------------------------------------------


def test_the_value_table(shoal):
    code, out, err = shoal("mac", "describe", "E5M2", "--cfg", "5")
    assert code == 0 and err == ""
    rows = cells(out)
    assert ["b01", "81,920", "3.81E-5"] in rows and ["b11", "inf", "5.34E-5"] in rows  # as the slides print it
    assert ["00000", "0", "3.81E-5", "4.58E-5", "5.34E-5"] in rows
    assert ["11111", "65,536", "81,920", "98,304", "inf"] in rows


def test_values_as_json(shoal):
    code, out, _ = shoal("mac", "describe", "E5M2", "--cfg", "5", "--json")
    found, format = strict(out), parse("E5M2:5")
    assert code == 0 and found["format"] == "E5M2:5" and found["max"] == 98_304
    assert found["values"][-1] == "inf" and len(found["values"]) == 128
    assert found["values"][:-1] == [format.decode(code) for code in range(127)]
    assert strict(shoal("mac", "describe", "E5M2", "--json")[1])["values"][-3:] == ["NaN"] * 3
    assert strict(shoal("mac", "describe", "Q8.13", "--json")[1])["values"] is None


def test_six_encodings_of_a_plain_format(shoal):
    assert ["b01", "NaN", "81,920", "1.53E-5", "3.81E-5", "0"] in cells(shoal("mac", "describe", "E5M2")[1])


@pytest.mark.parametrize(
    "name", ["fp64", "E8M0F", "E4M3FN", "E4M3B8FNUZ", "E5M2:4", "E1M1", "Q8.13", "Q1.7/row", "E2M1F/32"]
)
def test_formats_without_configuration(shoal, name):
    code, out, err = shoal("mac", "describe", name)
    assert code == 0 and err == "" and ["format", str(parse(name))] in cells(out)
    assert ("six configurations" in out) == (name == "E1M1")
    assert strict(shoal("mac", "describe", name, "--json")[1])["format"] == str(parse(name))


def test_describe_a_unit(shoal):
    code, out, _ = shoal("mac", "describe", "E4M3*E5M2:5+Q8.13, rounding=toward-zero")
    rows = cells(out)
    assert code == 0
    assert ["operands", "E4M3:5 and E5M2:5"] in rows and ["product", "E6M6:5(bias=22), exact"] in rows
    assert ["rounding", "toward-zero"] in rows and ["rounded", "the product before it is added"] in rows
    found = strict(shoal("mac", "describe", "E5M2:1+E6M5, fused=False", "--json")[1])
    assert found["properties"]["product"] == "E5M2, rounded (nearest-even)"
    assert found["properties"]["rounded"] == "the product before it is added, then the sum"
    assert [operand["format"] for operand in found["operands"]] == ["E5M2"]


# ---- area ----------------------------------------------------------------------------------------------------------


def test_the_comparison(shoal):
    units = ["E5M2:5+E6M5", "E5M2:5+Q8.13"]
    code, out, err = shoal("mac", "area", *units)
    assert code == 0 and err == ""
    (table,) = report.compare(units).tables
    for row in ([column.name for column in table.columns], *table.rows):
        assert row in cells(out)
    assert "x: extrapolated" in out and "float accumulator" not in out
    assert "float accumulator" in shoal("mac", "area", "--fits")[1]


def test_units_with_commas(shoal):
    apart, joined = (
        shoal("mac", "area", *words)[1] for words in (("E5M2:5+E6M5", "E5M2:5+Q8.13"), ("E5M2:5+E6M5,E5M2:5+Q8.13",))
    )
    assert apart == joined and "Q8.13" in apart


def test_the_comparison_as_json(shoal):
    found = strict(shoal("mac", "area", "E5M2:5+E6M5", "fp32", "--pes", "128", "--json")[1])
    assert [unit["unit"] for unit in found["units"]] == ["E5M2:5+E6M5", "E8M23+E8M23"]
    assert all(unit["pes"] == 128 for unit in found["units"])
    assert len(found["fits"]) == 7
    systems = strict(shoal("mac", "area", "--json")[1])["units"]
    assert [unit["areas"]["system"]["luts"] for unit in systems] == [58_420, 42_640, 43_471, 44_876]


# ---- sweep ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("rendered")
def test_mac_sweep(shoal, tmp_path):
    words = ["mac", "sweep", "E5M2:5+E6M5", "E5M2:5+Q8.13", "--inner", "16,64", "--scale", "4"]
    code, out, err = shoal(*words, "--picture", "units.png")
    assert code == 0 and err == ""
    rows = cells(out)
    assert [row[:2] for row in rows if row[0].startswith("E5M2")] == [
        ["E5M2:5+E6M5", "16"], ["E5M2:5+E6M5", "64"], ["E5M2:5+Q8.13", "16"], ["E5M2:5+Q8.13", "64"],
        ["E5M2:5+E6M5", "42,640"], ["E5M2:5+Q8.13", "43,471"],
    ]  # fmt: skip
    assert out.endswith("PNG  units.png\nJSON units.json\n")
    assert (tmp_path / "units.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir(tmp_path)) == ["units.json", "units.png"]
    saved = Result.from_json(json.loads((tmp_path / "units.json").read_text()))
    assert len(saved.tables[0].rows) == 4 and saved.figures and saved.provenance.command.startswith("shoal mac sweep")
    found = strict(shoal(*words, "--json")[1])["rows"]
    assert [row["inner"] for row in found] == [16, 64, 16, 64]
    assert found[2]["saturated"] > 0 == found[0]["saturated"]
    assert (found[0]["system_luts"], found[0]["system_luts_kind"]) == (42_640, "tabulated")


def test_unit_without_costs_and_infinite_result(shoal):
    words = ["mac", "sweep", "Q4.4+E6M5", "E5M2:5+E3M3, overflow=infinity", "--inner", "64", "--scale", "16"]
    code, out, _ = shoal(*words, "--json")
    fixed, infinite = strict(out)["rows"]
    assert code == 0 and fixed["system_luts"] is None and fixed["pj_per_mac"] is None and fixed["error"] > 0
    assert infinite["error"] is None and infinite["overflowed"] > 0
    code, out, err = shoal(*words, "--picture", "p.png")
    assert code == 2 and out == "" and "nothing to draw" in err
    assert "Cost depends on formats only" in shoal(*words)[1]


def test_default_units_are_those_of_the_slides(shoal, monkeypatch):
    monkeypatch.setattr(sweep, "SLIDES_UNITS", ("fp32+fp32",))
    assert [row["unit"] for row in strict(shoal("mac", "sweep", "--inner", "2", "--json")[1])["rows"]] == [
        "E8M23:1+E8M23"
    ]


# ---- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["mac", "mac describe", "mac area", "mac sweep", "bench"])
def test_help_has_an_example(shoal, capsys, words):
    try:
        code, out, _ = shoal(*words.split(), "--help")
    except SystemExit as stop:
        code, out = stop.code, capsys.readouterr().out
    assert code in (0, None) and f"shoal {words} " in out.partition("options")[0].replace("usage: shoal", "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("mac", "the commands are describe, area, sweep"),
        ("mac fly", "There is no command 'mac fly'"),
        ("mac describe", "FORMAT-UNIT-OR-SCHEME is missing"),
        ("mac describe E5", "'E5' is not a format, unit or scheme"),
        ("mac describe foo", "are formats, E5M2:5+E6M5 is a unit, and the schemes are float32"),
        ("mac describe foo+E6M5", "'foo' is not a format; E5M2"),
        ("mac describe E0M3", "E0M3 has no exponent bits"),
        ("mac describe E5M60", "E5M60 is not possible"),
        ("mac describe E5M2 --cfg 7", "--cfg is 7, but must be from 1 to 6"),
        ("mac describe E5M2 --cfg five", "--cfg 'five' is not a whole number"),
        ("mac describe Q8.8 --cfg 5", "encodings of floating-point operands"),
        ("mac describe E5M2:4 --cfg 5", "give the plain E5M2"),
        ("mac describe E5M2:5+E6M5 --cfg 5", "omit --cfg"),
        ("mac describe hfp8 --cfg 5", "--cfg is for formats"),
        ("mac describe E5M2:55+E6M5", "The cfg of 'E5M2:55+E6M5' is '55'"),
        ("mac describe E5M2:5+", "'' is not a format"),
        ("mac area E5M2:55+E6M5", "The cfg of 'E5M2:55+E6M5' is '55'"),
        ("mac area E5M2:5+E6M5,order=exact", "leave out what is after the comma"),
        ("mac area --pes 0", "--pes is 0"),
        ("mac area --pse 3", "--pse"),
        ("mac area E4M3/row+fp32", "has blocks"),
        ("mac sweep E5M2", "has no accumulator"),
        ("mac sweep E5M2:5+E6M5 --inner 0", "--inner is 0"),
        ("mac sweep E5M2:5+E6M5 --inner many", "--inner 'many' is not a list of whole numbers"),
        ("mac sweep E5M2:5+E6M5 --inner 1000000000", "--inner is 1000000000"),
        ("mac sweep --inner ''", "one inner length"),
        ("mac sweep --scale nan", "--scale is nan"),
        ("mac sweep --scale 0", "--scale is 0.0"),
        ("mac sweep --seed -1", "seed is -1"),
        ("mac sweep --picture units.txt", "must end in .png"),
        ("mac sweep --picture nowhere/units.png", "there is no folder 'nowhere'"),
        ("mac sweep E3M2:5(bias=40)+Q8.8", "every product would vanish"),
        ("bench gemm --agents 3", "--agents is 3, but bench gemm takes no numbers of agents"),
    ],
)
def test_wrong_arguments_are_refused(shoal, tmp_path, words, sentence):
    code, out, err = shoal(*[word if word != "''" else "" for word in words.split()])
    assert code == 2 and out == ""
    assert err.startswith("shoal: ") and err.endswith(".\n") and len(err.splitlines()) == 1 and sentence in err
    assert os.listdir(tmp_path) == []


# ---- benches -------------------------------------------------------------------------------------------------------


def test_bench_quantize(shoal, monkeypatch):
    monkeypatch.setattr(quantize.run, "__defaults__", (0.01, 2**12))
    code, out, _ = shoal("bench", "quantize", "--json")
    found = strict(out)
    rows = found["rows"]
    assert code == 0 and len(rows) == 12 and all(row["bench"] == "quantize" for row in rows)
    assert found["provenance"]["command"] == "shoal bench quantize --json"
    assert [row["per element, ns"] for row in found["tables"][0][1]] == [row["ns_per_element"] for row in rows]
    assert {(row["rounding"], row["out"], row["goal"]) for row in rows} == {
        (rounding, out, goal) for rounding, goal in quantize.GOALS.items() for out in ("given", "new")
    }
    for row in rows:
        assert row["of_goal"] == pytest.approx(row["goal"] / row["ns_per_element"])
        assert row["ratio"] == pytest.approx(row["ns_per_element"] / row["copy_ns_per_element"])


def test_bench_gemm():
    rows = gemm.run("products", seconds=0.01, size=64)
    assert [row["unit"] for row in rows[:3]] == list(gemm.GOALS)
    shapes = gemm.run("shapes", seconds=0.01, size=16)
    assert len(shapes) == len(gemm.TRAINING) + len(gemm.ORDERS) and all(row["reached"] > 0 for row in shapes)
    for row in rows:
        assert row["of_goal"] == pytest.approx(row["reached"] / row["goal"])
        assert row["ratio"] == pytest.approx(row["reached"] / row["float32"])
    large = rows[0]["reached"]
    assert {row["product"].split()[0]: row["goal"] / large for row in rows[3:]} == {
        "conv2d": pytest.approx(1 / 1.3), "3": pytest.approx(gemm.BATCHED_GOAL),
    }  # fmt: skip
