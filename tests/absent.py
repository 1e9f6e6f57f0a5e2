"""Packages that are not installed, as far as a test is concerned."""

import sys


def take_away(monkeypatch, missing, *forgotten):
    """Let a package not be installed, and others be imported anew."""

    class Absent:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == missing:
                raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    for name in list(sys.modules):
        if name.partition(".")[0] in (missing, *forgotten):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])
