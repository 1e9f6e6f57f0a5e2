"""Actors and the quantizer as threads of the test: the same code and shared memory, without a process to start."""

import importlib
import json
import os
import threading
from types import SimpleNamespace

import pytest


class ThreadChild:
    """What `WatchedChild` is to its parent."""

    def __init__(self, module, spec, descriptors, index, ticks):
        spec = json.loads(json.dumps({**spec, "index": index, "processor": None}))
        for value in spec.values():
            if isinstance(value, dict) and "descriptor" in value:  # a process has its own
                value["descriptor"] = os.dup(value["descriptor"])
        self.fault = None
        self.thread = threading.Thread(target=self.run, args=(importlib.import_module(module).run, spec), daemon=True)
        self.process = SimpleNamespace(poll=lambda: None if self.thread.is_alive() else 0)
        self.thread.start()

    def run(self, run, spec):
        try:
            run(spec, None)
        except BaseException as error:
            self.fault = error

    def alive(self, ticks, passed):
        return self.thread.is_alive()

    def raise_fault(self):
        if self.fault:
            raise self.fault

    def kill(self):
        self.thread.join(10)
        assert not self.thread.is_alive() and self.fault is None


def play_in_threads(patch):
    """Let actors and quantizer be threads; processes take seconds to start."""

    def live(board, index, parent):
        board.counts["ticks"][index] += 1

    patch.setattr("shoal.actorq.system.WatchedChild", ThreadChild)
    for module in ("actor", "quantizer"):
        patch.setattr(f"shoal.actorq.{module}.live", live)


@pytest.fixture
def threads(monkeypatch):
    """Actors and quantizer are threads."""
    play_in_threads(monkeypatch)


@pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.slow)])
def both(request):
    """Threads, and in the slow tests processes as well."""
    if request.param == "threads":
        request.getfixturevalue("threads")
