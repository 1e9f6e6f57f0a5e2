"""The machine's caches are read from the system, and what it does not tell is assumed with a sentence."""

import pytest

from shoal.errors import UserError
from shoal_papers.caches.geometry import Geometry, Level, machine_geometry, parse_geometry

CPUINFO = "processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: Some CPU\n"


def write(root, files):
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def cache(index, level, kind, size, ways, line=64):
    folder = f"sys/devices/system/cpu/cpu0/cache/index{index}/"
    names = ("level", "type", "size", "ways_of_associativity", "coherency_line_size")
    return {folder + name: f"{value}\n" for name, value in zip(names, (level, kind, size, ways, line), strict=True)}


def test_cache_sizes_reported_by_the_system(tmp_path):
    write(tmp_path, cache(0, 1, "Data", "48K", 12, 128))
    write(tmp_path, cache(1, 1, "Instruction", "16K", 4, 128))
    write(tmp_path, cache(2, 2, "Unified", "2048K", 16, 128))
    write(tmp_path, cache(3, 3, "Unified", "36864K", 12, 128))
    write(tmp_path, {"proc/cpuinfo": CPUINFO.format(vendor="GenuineIntel")})
    machine = machine_geometry(tmp_path)
    assert (machine.l1, machine.l2, machine.l3) == (Level(48 << 10, 12), Level(2 << 20, 16), Level(36 << 20, 12))
    assert (machine.line, machine.cpu, machine.dtlb) == (128, "Some CPU", Level(64, 4))
    assert set(machine.assumed) == {"dtlb", "stlb"}
    assert "Some CPU; modelled as L1=48K/12,L2=2M/16,L3=36M/12,line=128,dtlb=64/4" in machine.describe()


def test_assumed_cache_sizes_are_stated(tmp_path):
    write(tmp_path, cache(0, 1, "Data", "32K", 0))
    write(tmp_path, cache(1, 2, "Unified", "1000K", 7))  # cannot be
    write(tmp_path, {"proc/cpuinfo": CPUINFO.format(vendor="AuthenticAMD")})
    machine = machine_geometry(tmp_path)
    assert machine.l1 == Level(32 << 10, 512), "fully associative"
    assert set(machine.assumed) == {"l2", "l3", "dtlb", "stlb"}
    assert machine.stlb == Level(2048, 16)
    assert "The system does not report its L3 data cache; 32M, 16-way, is assumed." in machine.describe()


def test_system_without_cache_information(tmp_path):
    machine = machine_geometry(tmp_path)
    assert str(machine) == str(Geometry(page=machine.page))
    assert {"l1", "l2", "l3", "line"} < set(machine.assumed)


def test_caches_of_this_machine():
    machine = machine_geometry()
    assert parse_geometry(str(machine)) == Geometry(
        **{**vars(machine), "assumed": parse_geometry(str(machine)).assumed}
    )


def test_description_overrides_detected_caches():
    base = Geometry(assumed={"l3": "Three is assumed.", "dtlb": "dTLB is assumed."})
    machine = parse_geometry("l1=48KiB/12, L3=33M/11,page=2m", base)
    assert (machine.l1, machine.l2, machine.l3) == (Level(48 << 10, 12), base.l2, Level(33 << 20, 11))
    assert machine.page == 2 << 20
    assert list(machine.assumed) == ["dtlb"], "what is given is no longer assumed"


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "'' is not a cache size; use some of L1=32K/8"),
        ("L4=1M/8", "'L4=1M/8' is not a cache size"),
        ("L1=32K", "'L1=32K' in the cache sizes 'L1=32K' is not size/ways such as 32K/8."),
        ("L1=32K/8,L2=much/8", "'L2=much/8' in the cache sizes"),
        ("L1=32K/8,L1=32K/8", "name 'L1' twice"),
        ("L1=1000/8", "which 8 ways do not divide evenly"),
        ("dtlb=64/0", "which 0 ways do not divide evenly"),
        ("L1=32K/-8", "ways do not divide evenly"),
        ("line=48", "The line of a machine is 48 bytes, but must be a power of two."),
        ("page=32", "A page of 32 bytes is smaller than a line of 64."),
        ("page=-4K", "is not a size such as 64 or 4K"),
        ("page=²K", "is not a size such as 64 or 4K"),
    ],
)
def test_wrong_descriptions_are_refused(text, says):
    with pytest.raises(UserError) as error:
        parse_geometry(text, Geometry())
    assert says in str(error.value)
    assert "\n" not in str(error.value)
