"""Signals are recorded; whoever waits long after one is told why."""

import signal
import time

import pytest

from shoal.runs import interrupt
from shoal.runs.interrupt import BUSY, Interrupt, Stopped


def test_busy_run_acknowledges_a_signal_once(monkeypatch):
    monkeypatch.setattr(interrupt, "PATIENCE", 0.01)
    said = []
    with Interrupt(said.append) as noted:
        signal.raise_signal(signal.SIGTERM)
        noted._reminder.join(30)
        signal.raise_signal(signal.SIGHUP)  # a thread cannot be started twice
    assert noted.signal == signal.SIGTERM and said == [BUSY]


def test_run_that_stops_at_once_prints_nothing(monkeypatch):
    monkeypatch.setattr(interrupt, "PATIENCE", 60)
    said = []
    with Interrupt(said.append) as noted:
        signal.raise_signal(signal.SIGINT)
    noted._reminder.join(30)
    assert noted.signal == signal.SIGINT and not noted._reminder.is_alive() and said == []


def test_a_second_ctrl_c_takes_effect_at_once():
    with pytest.raises(Stopped), Interrupt(pytest.fail):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


def test_a_stop_can_be_rebuilt_from_its_arguments():
    """As simpy does with what its processes raise, and pickle."""
    stopped = Stopped(signal.SIGTERM)
    assert type(stopped)(*stopped.args).number == signal.SIGTERM


def test_abandoned_run_ends_even_if_ctrl_c_is_ignored():
    """As under nohup, or in the background of a script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(Stopped) as stopped, Interrupt(pytest.fail) as noted:
            signal.raise_signal(signal.SIGTERM)
            noted.abandon()
            time.sleep(0.01)  # a signal to this thread is noticed between two instructions
        assert stopped.value.number == signal.SIGTERM
    finally:
        signal.signal(signal.SIGINT, before)
