"""Whose run it is: what the signature covers, and where there is no key."""

import os
import stat
import sys
from importlib.util import spec_from_file_location
from types import SimpleNamespace

import pytest

from shoal.runs.signature import is_signed, sign

WORLD = "pettingzoo:signed_world"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with a module, and a state folder without a key."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("work", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "signed_world.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def test_signed_properties_of_a_run(place, monkeypatch):
    run = place / "run"
    signature = sign(run, [(WORLD, "")])
    assert is_signed(signature, run, [(WORLD, "")]) and os.getcwd() in sys.path
    monkeypatch.setattr(sys, "path", [word for word in sys.path if word != os.getcwd()])
    assert not is_signed(signature, place / "copy", [(WORLD, "")])
    assert not is_signed(signature, run, [("pettingzoo:another", "")])
    assert not is_signed(signature, run, [(WORLD, "{}")])
    for wrong in ("", None, 3, "é", signature[:-1], "0" * 64):
        assert not is_signed(wrong, run, [(WORLD, "")])
    monkeypatch.chdir(place / "other")  # the same name is another file here
    assert not is_signed(signature, run, [(WORLD, "")]) and os.getcwd() not in sys.path


def test_relative_path_has_the_same_signature(place):
    signature = sign(place / "work" / "run", [(WORLD, "")])
    assert is_signed(signature, "run", [(WORLD, "")])


def test_a_world_that_pip_installed_with_e_is_found(place, monkeypatch):
    """setuptools puts a finder after Python's own; a file in the working directory would be imported instead."""
    source = place / "project" / "editable_world.py"

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return spec_from_file_location(name, source) if name == "editable_world" else None

    trained = SimpleNamespace(__spec__=spec_from_file_location("editable_world", source))
    with monkeypatch.context() as training:
        training.setitem(sys.modules, "editable_world", trained)
        signature = sign(place, [("pettingzoo:editable_world", "")])
    assert not is_signed(signature, place, [("pettingzoo:editable_world", "")])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert is_signed(signature, place, [("pettingzoo:editable_world", "")])
    (place / "work" / "editable_world.py").write_text("")
    assert not is_signed(signature, place, [("pettingzoo:editable_world", "")])


def test_other_portion_of_a_namespace_package_invalidates(place, monkeypatch):
    (place / "installed" / "parts").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(place / "installed")])
    signature = sign(place, [("pettingzoo:parts.world", "")])
    assert is_signed(signature, place, [("pettingzoo:parts.world", "")])
    (place / "work" / "parts").mkdir()
    assert not is_signed(signature, place, [("pettingzoo:parts.world", "")])


def test_key_is_readable_by_its_user_only(place, monkeypatch):
    signature, key = sign(place, [(WORLD, "")]), place / "state" / "shoal" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and os.listdir(key.parent) == ["key"]
    assert sign(place, [(WORLD, "")]) == signature
    for damage in (lambda: key.chmod(0o644), lambda: key.write_bytes(b"short"), key.unlink):
        assert is_signed(signature, place, [(WORLD, "")])
        content = key.read_bytes()
        damage()
        assert not is_signed(signature, place, [(WORLD, "")])
        key.write_bytes(content)
        key.chmod(0o600)
    key.unlink()
    assert sign(place, [(WORLD, "")]) not in ("", signature)  # by a new key


@pytest.mark.parametrize("state", ["/proc/nothing", "/dev/null"])
def test_without_a_place_for_a_key_nothing_is_signed(place, monkeypatch, state):
    monkeypatch.setenv("XDG_STATE_HOME", state)
    assert sign(place, [(WORLD, "")]) == "" and not is_signed("", place, [(WORLD, "")])


def test_missing_home_directory(place, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert sign(place, [(WORLD, "")]) == "" and not os.path.exists("relative")


def test_a_script_is_never_signed(place):
    assert sign(place, [("gym:__main__:Mine", "")]) == ""
