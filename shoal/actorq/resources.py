"""What simulated processes share: cores, network links and signals."""

import heapq
import itertools
import math
from collections.abc import Callable

import simpy


class Cores:
    """Cores that all running work shares evenly: of n pieces each proceeds at the rate cores / n, at most 1.

    Beside others it is slower by the contention.

    All pieces proceed equally, so one clock counts the work that each of them has got so far, and a piece is finished
    when that clock has moved by its amount.
    """

    def __init__(self, env: simpy.Environment, cores: int | None, contention: float = 0.0) -> None:
        self.env, self.cores, self.contention = env, cores, contention
        self._clock = self._since = 0.0
        self._running: list[tuple[float, int, simpy.Event]] = []
        self._numbers = itertools.count()
        self._plan = 0  # a wake-up that was planned before the latest change is none

    def work(self, seconds: float) -> simpy.Event:
        """The event that so many seconds of work are done."""
        if self.cores is None or seconds == 0:
            return self.env.timeout(seconds)
        self._proceed()
        done = self.env.event()
        heapq.heappush(self._running, (self._clock + seconds, next(self._numbers), done))
        self._wake()
        return done

    @property
    def _rate(self) -> float:
        assert self.cores is not None
        count = len(self._running)
        return min(1.0, self.cores / count) / (1 + self.contention * (count > 1)) if count else 1.0

    def _proceed(self) -> None:
        self._clock += (self.env.now - self._since) * self._rate
        self._since = self.env.now

    def _wake(self) -> None:
        """Plan the next end of a piece."""
        self._plan += 1
        if self._running:
            plan = self._plan
            after = max(0.0, self._running[0][0] - self._clock) / self._rate
            then(self.env.timeout(after), lambda: self._end(plan))

    def _end(self, plan: int) -> None:
        if plan == self._plan:
            self._proceed()
            finish, _, done = heapq.heappop(self._running)
            self._clock = finish  # exactly: rounding must not leave a rest
            done.succeed()
            self._wake()


class Link:
    """One direction of the learner's link: first come, first served."""

    def __init__(self, env: simpy.Environment, mbit: float | None) -> None:
        self.env, self.busy = env, 0.0
        self._rate = math.inf if mbit is None else mbit * 1e6 / 8
        self._free = 0.0

    def carry(self, size: float, latency: float = 0.0) -> simpy.Event:
        """The event that so many bytes have arrived."""
        took = size / self._rate
        self._free = max(self._free, self.env.now) + took
        self.busy += took
        return self.env.timeout(self._free - self.env.now + latency)


class Wakeup:
    """A reusable event: processes wait for `next`, and `wake` fires it."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env, self.next = env, env.event()

    def wake(self) -> None:
        """Fire the event that processes wait for."""
        if self.next.callbacks:  # events that nobody waits for would only take time
            event, self.next = self.next, self.env.event()
            event.succeed()


def then(event: simpy.Event, action: Callable[[], None]) -> None:
    """Do something when an event happens."""
    assert event.callbacks is not None
    event.callbacks.append(lambda _: action())
