"""Installations as users have them: minutes each, with all libraries installed anew. Pip must be able to find them."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

from tests.cli.helpers import HOME, SHORT

pytestmark = pytest.mark.slow

TRAIN = f"train {' '.join(SHORT)} --out"
SOMEBODY = 65534
"""The user that has nothing, if we may become it."""


@pytest.fixture
def folder():
    """A folder that other users can look into, unlike pytest's."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def clone(folder):
    """The sources as in a fresh clone."""
    made = {"runs", "site", "build", "dist", "studies", "quantize"}

    def left_out(place, names):
        return [
            name for name in names if name[0] == "." or name == "__pycache__" or (place == str(HOME) and name in made)
        ]

    return Path(shutil.copytree(HOME, folder / "clone", ignore=left_out))


def environment(home):
    """Of a user with this home and nothing else."""
    ours = ("PYTHONPATH", "SHOAL_CACHE", "XDG_CACHE_HOME", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL")
    return {name: value for name, value in os.environ.items() if name not in ours} | {"HOME": str(home)}


def sources(package):
    """All files of a package but bytecode."""
    return {path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_pip_install_after_make_and_make_after_pip_install(clone, folder):
    """This made every command fail: numba's cache stayed in site-packages and hid the editable installation."""
    home, bin = folder / "home", clone / ".venv" / "bin"
    home.mkdir()

    def run(line, cwd=folder, code=0):
        ended = subprocess.run(shlex.split(line), cwd=cwd, env=environment(home), capture_output=True, text=True)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def works_from_the_clone():
        run(f"{bin}/shoal --version")
        assert str(clone / "shoal") in run(f"{bin}/python -c 'from shoal import cli; print(cli.__file__)'")

    run(f"make setup PYTHON={sys.executable}", clone)
    assert "Compiled" in run(f"{bin}/shoal {TRAIN} first")
    run(f"{bin}/python -m pip install --quiet -c constraints.txt .[pettingzoo,sb3]", clone)
    (package,) = (clone / ".venv" / "lib").glob("python*/site-packages/shoal")
    before = sources(package)
    assert "Compiled" not in run(f"{bin}/shoal {TRAIN} second")
    run(f"{bin}/shoal evaluate second --episodes 2")
    assert sources(package) == before and not list(clone.rglob("*.nb[ci]"))
    run("make docs", clone)
    works_from_the_clone()
    (package / "envs" / "__pycache__").mkdir(parents=True)  # as earlier versions left it
    (package / "envs" / "__pycache__" / "physics.act-1.py311.nbi").touch()
    assert "cannot import name" in run(f"{bin}/shoal --version", code=1)
    run("make setup", clone)
    works_from_the_clone()


def interpreter(version, folder):
    """A Python of this version that everybody may run, in a new environment."""
    found = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")]
    for path in filter(None, found):
        ask = [path, "-c", "import sys, ensurepip; print(*sys.version_info[:2], sep='.'); print(sys.base_prefix)"]
        said = subprocess.run(ask, capture_output=True, text=True).stdout.split()
        if said[:1] == [version]:
            prefix = Path(said[1])
            if prefix != Path("/usr"):  # perhaps in a home
                ignore = shutil.ignore_patterns("test", "tests", "site-packages", "__pycache__")
                prefix = Path(shutil.copytree(prefix, folder / "python", symlinks=True, ignore=ignore))
            (prefix / "lib" / f"python{version}" / "site-packages").mkdir(exist_ok=True)
            subprocess.run([prefix / "bin" / f"python{version}", "-m", "venv", folder / "venv"], check=True)
            return folder / "venv" / "bin" / "python"
    pytest.skip(f"there is no Python {version} here")


def built(kind, clone, folder):
    """The wheel or the source archive of the clone."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(folder)!r}))"
    said = subprocess.run([sys.executable, "-c", code], cwd=clone, check=True, capture_output=True, text=True).stdout
    return folder / said.split()[-1]


@pytest.mark.parametrize(("kind", "version"), [("sdist", "3.11"), ("wheel", "3.12"), ("wheel", "3.13")])
def test_an_archive_installed_by_an_administrator(kind, version, clone, folder):
    """Site-packages cannot be written, the working directory is another, and the user is not root where that works.

    Without torch, which training does not need, and which would be gigabytes for every version of Python.
    """
    python, home, as_user = interpreter(version, folder), folder / "home", {}
    home.mkdir()
    if os.geteuid() == 0:
        os.chown(home, SOMEBODY, SOMEBODY)
        as_user = {"user": SOMEBODY, "group": SOMEBODY, "extra_groups": []}
    needed = tomllib.loads((clone / "pyproject.toml").read_text())["project"]["dependencies"]
    install = [python, "-m", "pip", "install", "--quiet", "-c", clone / "constraints.txt"]
    subprocess.run([*install, *(name for name in needed if not name.startswith("torch"))], check=True)
    subprocess.run([*install, "--no-deps", built(kind, clone, folder)], check=True)
    (package,) = (folder / "venv" / "lib").glob("python*/site-packages/shoal")
    shutil.rmtree(clone)
    subprocess.run(["chmod", "-R", "a-w", folder / "venv"], check=True)
    before = set(package.rglob("*"))

    def run(line, **more):
        words, settings = (
            [python.parent / "shoal", *line.split()],
            environment(home) | {"LD_LIBRARY_PATH": str(folder / "python" / "lib")} | more,
        )
        ended = subprocess.run(words, cwd=home, env=settings, capture_output=True, text=True, **as_user)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stderr

    run("--version")
    assert "Compiled" in run(f"{TRAIN} first")
    assert "Compiled" not in run(f"{TRAIN} second")
    kept = home / ".cache" / "shoal" / "compiled"
    assert len(list(kept.iterdir())) > 20 and set(package.rglob("*")) == before
    said = run(f"{TRAIN} third", SHOAL_CACHE=str(folder / "not writable"))
    assert said.count("Compiled code is not kept for later runs") == 1
    assert "Traceback" not in said and set(package.rglob("*")) == before
    if os.geteuid() == 0:  # not left to the fixture: a user could have made it harder
        subprocess.run(["chmod", "-R", "u+w", folder / "venv"], check=True)
