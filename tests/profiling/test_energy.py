"""Energy from a made-up tree of counters."""

import pytest

from shoal.profiling.counters import EnergyMeter, packages

MOST = 1_000_000_000


@pytest.fixture
def tree(tmp_path):
    """Two packages with a subdomain, the same package by MMIO, and the whole platform."""
    for folder, name, energy in (
        ("intel-rapl:0", "package-0", 5_000_000),
        ("intel-rapl:0:0", "core", 4_000_000),
        ("intel-rapl:1", "package-1", MOST - 1_000_000),
        ("intel-rapl:2", "psys", 9_000_000),
        ("intel-rapl-mmio:0", "package-0", 5_000_000),
    ):
        place = tmp_path / folder
        place.mkdir()
        (place / "name").write_text(f"{name}\n")
        (place / "max_energy_range_uj").write_text(f"{MOST}\n")
        (place / "energy_uj").write_text(f"{energy}\n")
    (tmp_path / "intel-rapl").mkdir()  # the control type, which has no counter
    return tmp_path


def spend(tree, folder, energy):
    (tree / folder / "energy_uj").write_text(f"{energy}\n")


def test_energy_counts_each_package_once(tree):
    assert [path.name for path in packages(tree)] == ["intel-rapl:0", "intel-rapl:1"]
    meter = EnergyMeter(tree)
    assert meter.joules() == 0
    for folder in ("intel-rapl:0:0", "intel-rapl:2", "intel-rapl-mmio:0"):
        spend(tree, folder, 900_000_000)
    spend(tree, "intel-rapl:0", 7_500_000)
    assert meter.joules() == 2.5


def test_energy_counter_wraps_around(tree):
    meter = EnergyMeter(tree)
    spend(tree, "intel-rapl:1", 2_000_000)
    assert meter.joules() == 3
    spend(tree, "intel-rapl:1", 2_500_000)
    assert meter.joules() == 0.5


def test_missing_and_unreadable_energy_counters(tree):
    meter = EnergyMeter(tree / "nowhere")
    assert meter.joules() is None and meter.reason == ""
    path = tree / "intel-rapl:1" / "energy_uj"
    path.unlink()
    path.mkdir()  # not even root can read it
    meter = EnergyMeter(tree)
    assert meter.joules() is None and "cannot be read: Is a directory" in meter.reason
