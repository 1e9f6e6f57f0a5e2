"""Compiled code is kept outside the package, never older than its sources, and only loaded if it is whole and ours."""

import importlib
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from numba import types

from shoal import compiled
from shoal.compiled import PACKAGE, SUFFIX, TOLD, DiskCache, cache_folder, cfunc, imported, njit, source_hash

KERNELS = sorted(path for path in PACKAGE.rglob("*.py") if "from shoal.compiled import" in path.read_text())
OFFSET = 3


def plus(x):
    return x + OFFSET


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache, and a process that has told nothing yet."""
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(TOLD, "")
    monkeypatch.delenv(TOLD)
    return tmp_path / "cache" / "compiled"


def loaded() -> bool:
    """Call the function as a new process would; whether it came from the cache."""
    dispatcher = njit(cache=True)(plus)
    assert dispatcher(4) == 7
    return bool(dispatcher.stats.cache_hits)


def test_cache_is_outside_the_package(folder):
    from shoal.actorq.versions import checksum

    before = set(PACKAGE.rglob("*"))
    fresh = njit(cache=True, nogil=True)(checksum.py_func)
    fresh.compile((types.Array(types.uint64, 1, "C"),))
    assert fresh.stats.cache_path == str(folder) and fresh.stats.cache_misses
    assert [path.name.partition("-")[0] for path in folder.iterdir()] == ["actorq.versions.checksum"]
    assert set(PACKAGE.rglob("*")) == before


def test_no_function_of_shoal_uses_numbas_own_cache():
    assert {PACKAGE / "envs/physics.py", PACKAGE / "native/work.py", PACKAGE / "replay/gather.py"} <= {*KERNELS}
    direct = re.compile(r"from numba import .*\b(jit|njit|cfunc|vectorize)\b|numba\.(jit|njit|cfunc|vectorize)\(")
    found = [path.name for path in PACKAGE.rglob("*.py") if direct.search(path.read_text())]
    assert found == ["compiled.py"]


def test_a_function_is_compiled_once_for_each_type(folder):
    assert not loaded() and loaded()
    assert njit(cache=True)(plus)(1.5) == 4.5 and len(list(folder.iterdir())) == 2
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    assert njit(plus)(1) == 4 and len(list(folder.iterdir())) == 2  # not asked to keep it


LOOPS = "\n".join(f"        for i in range(len(x)): s += x[i] * factor if x[i] * {k} > s else -{k}" for k in range(30))
CLOSURES = f"""
import sys
import numpy as np
from shoal.compiled import njit

def scaled(factor):
    @njit(error_model="numpy")
    def total(x):
        s = 0.0
{LOOPS}
        return s
    @njit(cache=True, key=str(factor), error_model="numpy")
    def twice(x):
        return total(x) + total(2 * x)
    return twice

for factor in map(float, sys.argv[1:]):
    function, x = scaled(factor), np.arange(10.0)
    assert function(x) == function.py_func(x), factor
"""


def test_closures_from_the_cache_call_their_own_functions(folder, tmp_path):
    """The linker knows functions by name; too long to be inlined, those of one process must not be another's."""
    program = tmp_path / "closures.py"
    program.write_text(CLOSURES)
    for factors in (["1"], ["2", "1"]):  # compiled in the first process; loaded in the second, after another one's
        ran = subprocess.run([sys.executable, program, *factors], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr


def test_callbacks_with_different_constants_are_different(folder):
    def made(constant):
        @cfunc(types.int64(types.int64), error_model="numpy")
        def times(x):
            return x * constant

        return times

    for hits in (0, 1):
        three, seven = made(3), made(7)
        assert (three.ctypes(2), seven.ctypes(2), three.cache_hits, seven.cache_hits) == (6, 14, hits, hits)
    assert len(list(folder.iterdir())) == 2


def damages():
    yield "empty", lambda path: path.write_bytes(b"")
    yield "cut", lambda path: path.write_bytes(path.read_bytes()[:-1])
    yield "longer", lambda path: path.write_bytes(path.read_bytes() + b"0")
    yield "one bit", lambda path: path.write_bytes(path.read_bytes()[:500] + b"\0" + path.read_bytes()[501:])
    yield "a folder", lambda path: (path.unlink(), path.mkdir())
    yield "nowhere", lambda path: (path.unlink(), path.symlink_to("nowhere"))
    yield "a link to the same", lambda path: path.symlink_to(path.rename(path.with_name("elsewhere")))
    yield "a pipe", lambda path: (path.unlink(), os.mkfifo(path))
    yield "others can write", lambda path: path.chmod(0o622)


@pytest.mark.parametrize("damage", [pytest.param(damage, id=name) for name, damage in damages()])
def test_a_damaged_file_is_compiled_again(folder, damage):
    loaded()
    (path,) = folder.iterdir()
    damage(path)
    if path.is_dir():  # which is nothing that we would delete
        with pytest.warns(UserWarning, match="Compiled code is not kept"):
            assert not loaded()
    else:
        assert not loaded() and loaded()
        assert path.stat().st_mode & 0o777 == 0o600


def test_renamed_cache_file_is_not_loaded(folder):
    loaded()
    (path,) = folder.iterdir()
    njit(cache=True)(plus)(1.5)
    (other,) = set(folder.iterdir()) - {path}
    path.write_bytes(other.read_bytes())
    assert not loaded() and loaded()


def test_files_of_another_user_are_not_used(folder, monkeypatch):
    loaded()
    (path,) = folder.iterdir()
    content = path.read_bytes()
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.warns(UserWarning, match="its files belong to another user"):
        assert not loaded()
    assert path.read_bytes() == content and len(list(folder.iterdir())) == 1


def test_unwritable_cache_is_reported_once(folder, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning) as told:
        assert not loaded() and not loaded()
    assert str(told[0].message) == (
        f"Compiled code is not kept for later runs: {tmp_path}/file/compiled cannot be written (Not a directory); "
        "name a folder in SHOAL_CACHE."
    )
    assert len(told) == 1 and told[0].filename == compiled.__file__  # so that a command prints only the sentence
    assert os.environ[TOLD]  # which children inherit
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not loaded()


def test_a_full_disk_leaves_no_file(folder, monkeypatch):
    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="cannot be written .No space left on device."):
        assert not loaded()
    assert not list(folder.iterdir())


def test_missing_home_directory(folder, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("SHOAL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.warns(UserWarning, match="for later runs: there is no home folder; name"):
        assert not loaded()


def test_location_of_the_cache(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("SHOAL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")  # as good as none
    assert cache_folder() == Path("/home/me/.cache/shoal/compiled")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")  # which its specification says to ignore
    assert cache_folder() == Path("/home/me/.cache/shoal/compiled")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_folder() == Path("/cache/shoal/compiled")
    monkeypatch.setenv("SHOAL_CACHE", "/mine")
    assert cache_folder() == Path("/mine/compiled")


def test_relative_cache_folder_survives_chdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_CACHE", "relative to the first working directory")
    first = cache_folder()
    monkeypatch.chdir("/")
    assert cache_folder() == first == tmp_path / "relative to the first working directory" / "compiled"


def test_unread_files_are_deleted(folder):
    folder.mkdir(parents=True)
    old, read, foreign = folder / f"old{SUFFIX}", folder / f"read{SUFFIX}", folder / "notes.txt"
    for path, accessed in ((old, 0), (read, None), (foreign, 0)):
        path.touch()
        os.utime(path, (path.stat().st_atime if accessed is None else accessed, 0))
    loaded()
    assert not old.exists() and read.exists() and foreign.exists()


# ---- the key ---------------------------------------------------------------------------------------------------------


class Processor:
    """A code generator, as far as the key is concerned."""

    def __init__(self, *magic):
        self.magic_tuple = lambda: magic


def test_the_key_has_everything_that_code_depends_on(monkeypatch):
    def path(function=plus, sig=(types.int64,), processor=("x86", "znver4", "+avx2")):
        return DiskCache(function)._path(sig, Processor(*processor))

    def other(x):
        return x + OFFSET

    def closed(constant):
        return lambda x: x + constant

    paths = [path(), path(other), path(closed(1)), path(closed(2))]
    paths += [path(sig=(types.float64,)), path(sig=(types.Array(types.int64, 1, "C"),))]
    paths += [path(processor=("x86", "generic", "+avx2")), path(processor=("x86", "znver4", "+avx2,+avx512f"))]
    for module, name in ((sys, "version"), (compiled.numba, "__version__"), (compiled, "__version__")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, "another one")
            paths.append(path())
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "source_hash", lambda file: "another one")
        paths.append(path())
    assert len(set(paths)) == len(paths) and path() == paths[0]


@pytest.fixture
def package(tmp_path):
    """A package in which `kernel` uses `helper`, which uses a constant, and nothing uses `apart`."""
    home = tmp_path / "tiny"
    (home / "deep").mkdir(parents=True)
    (home / "__init__.py").write_text("from tiny import apart\n")
    (home / "kernel.py").write_text("from numba import njit\nfrom tiny.deep.helper import (\n    help,  # it\n)\n")
    (home / "deep" / "helper.py").write_text("def help():\n    from tiny.deep import NUMBER as n, constants as c\n")
    (home / "deep" / "__init__.py").write_text("NUMBER = 1\n")
    (home / "deep" / "constants.py").write_text("import tiny.deep.more\n")
    (home / "deep" / "more.py").write_text("MORE = 1\n")
    (home / "apart.py").write_text("APART = 1\n")
    return home


@pytest.mark.parametrize(
    ("file", "matters"),
    [("kernel.py", True), ("deep/helper.py", True), ("deep/__init__.py", True), ("deep/constants.py", True),
     ("deep/more.py", True), ("apart.py", False), ("__init__.py", False)],
)  # fmt: skip
def test_a_changed_helper_in_another_file_changes_the_key(package, file, matters):
    kernel = str(package / "kernel.py")
    before = source_hash(kernel, package)
    path = package / file
    path.write_text(path.read_text() + "# changed\n")
    source_hash.cache_clear()
    assert (source_hash(kernel, package) != before) == matters


def test_key_covers_everything_kernels_refer_to():
    """Found in another way than the key finds it: by what the functions' global names are bound to."""
    checked = 0
    for path in KERNELS:
        files, waiting = {path}, [path]
        while waiting:
            more = imported(waiting.pop().read_text(), PACKAGE) - files
            files |= more
            waiting += more
        module = importlib.import_module(".".join(("shoal", *path.relative_to(PACKAGE).with_suffix("").parts)))
        for function in vars(module).values():
            code = getattr(getattr(function, "py_func", None), "__code__", None)
            for name in code.co_names if code else ():
                used = vars(module).get(name)
                origin = getattr(used, "__module__", None) or getattr(used, "__name__", None)
                if isinstance(origin, str) and origin.startswith("shoal."):
                    assert Path(sys.modules[origin].__file__) in files, (path, name)
                    checked += 1
    assert checked > 100
