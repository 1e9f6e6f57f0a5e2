"""What stands in the collector's place in a run with actors: chunks are taken in, from every actor at its own pace."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.actorq.chunks import Chunk
from shoal.actorq.limiter import RateLimiter
from shoal.actorq.system import ACTORS, QUANTIZER, ActorSystem
from shoal.envs.base import VectorEnv
from shoal.errors import Diverged, UserError
from shoal.replay import Ring
from shoal.training.collector import Collecting
from shoal.training.returns import Episode, ReturnTracker

PAUSE = 0.0002  # seconds between looks at what is waited for
BREATH = 0.05  # seconds after which a wait is over for now: the loop looks for signals
PATIENCE = 600.0  # seconds without any chunk after which a run is given up
LAGS = 10_000  # steps whose lag is remembered for the log


class ActorCollector(Collecting):
    """Takes chunks from the actors' queues into the ring, and counts samples and whole episodes."""

    def __init__(self, env: VectorEnv, ring: Ring, system: ActorSystem, limiter: RateLimiter) -> None:
        """`env`: one copy of the world, of which only the spec is used."""
        super().__init__(env)  # resets it: a checkpoint asks for its state
        self.ring, self.system, self.limiter, self.config = ring, system, limiter, system.config
        self.updates = 0
        """Of the learner; it tells."""
        self.starved = False
        """The limiter lets the learner sample, but the ring has too little to draw from: only inserts help."""
        self.waited = 0.0
        """Seconds in which the learner had nothing to do, since the first chunk."""
        self.lags: deque[int] = deque(maxlen=LAGS)
        self._trackers: dict[int, ReturnTracker] = {}
        self._turn = 0  # the actor whose chunk goes first, so that all get their share where the limiter admits few
        self._last_chunk = time.monotonic()
        self._begun: float | None = None  # when the first chunk came
        self._waited_before = 0.0  # seconds that the actors had waited by then

    def ready(self) -> bool:
        """Whether a chunk is there that may go in."""
        wanted = self._may_insert()
        self.system.watch(wanted)
        return wanted and any(queue.waiting for queue in self.system.queues)

    def _may_insert(self) -> bool:
        layout = self.system.layout
        return self.starved or self.limiter.may_insert(layout.steps * layout.copies)

    def step(self, phase: Callable[[str], None]) -> list[Episode]:
        """Take in what has come; returns the episodes that ended with it."""
        self.system.watch(self._may_insert())
        phase("replay insertion")
        ended = self._take_round() if self.config.lockstep else self._take_waiting()
        phase("other")
        if ended is None:
            self._pause()
        return ended or []

    def _take_waiting(self) -> list[Episode] | None:
        """One chunk of every actor that has one, as far as the limiter lets them in; None: there was none."""
        ended: list[Episode] | None = None
        count = len(self.system.queues)
        for k in [(self._turn + i) % count for i in range(count)]:
            queue = self.system.queues[k]
            if queue.waiting and self._may_insert() and (chunk := queue.next()) is not None:
                ended = [*(ended or ()), *self._take(k, chunk)]
                self._turn = (k + 1) % count
        return ended

    def _take_round(self) -> list[Episode] | None:
        """In lock-step: let every actor play one chunk with the newest version, and take them in in order."""
        board = self.system.board
        if board.counts["number"][QUANTIZER] < self.system.published:
            return None
        if all(queue.sent == board.round and not queue.waiting for queue in self.system.queues):
            board.round += 1
        if any(not queue.waiting for queue in self.system.queues):
            return None
        ended: list[Episode] = []
        for k, queue in enumerate(self.system.queues):
            chunk = queue.next()
            if chunk is None:
                raise UserError("A chunk of experience was damaged on its way; a run in lock-step cannot do without.")
            ended += self._take(k, chunk)
        return ended

    def _take(self, k: int, chunk: Chunk) -> list[Episode]:
        """The chunk that the queue of actor k gave: into the ring."""
        copies = np.arange(k * self.config.copies, (k + 1) * self.config.copies)
        if chunk.begins:
            self.ring.restart(chunk.first, copies)
            self._trackers[k] = ReturnTracker(self.env.spec, chunk.fresh)
        steps = slice(chunk.steps)
        if not np.isfinite(chunk.actions[steps].sum()):
            raise Diverged("The policy's actions are not numbers")
        together = chunk.step(steps)
        self.ring.add_chunk(copies, chunk.actions[steps], together)
        self.system.recent.add(together.observation)
        ended = [episode for t in range(chunk.steps) for episode in self._trackers[k].add(chunk.step(t))]
        self.lags.extend((self.updates - chunk.version[steps]).tolist())
        count = chunk.steps * len(copies)
        self.episodes += len(ended)
        self.samples += count
        self.limiter.inserts += count
        self.starved = False
        self._last_chunk = time.monotonic()
        if self._begun is None:
            self._begun, self._waited_before = self._last_chunk, self._actors_waited()
        self.system.queues[k].done()
        return ended

    def _pause(self) -> None:
        """Wait a moment for a chunk: the learner has nothing to do."""
        start = time.monotonic()
        if start - self._last_chunk > PATIENCE:
            raise UserError(f"No actor has sent anything for {PATIENCE / 60:.0f} minutes.")
        if self.config.lockstep:
            time.sleep(PAUSE)
        else:
            while not self.ready() and time.monotonic() - start < BREATH:  # only inserts let the learner go on
                time.sleep(PAUSE)
        if self._begun is not None:
            self.waited += time.monotonic() - start

    # ---- metrics and state ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The run begins or resumes: start the processes."""
        self.system.start(self.samples)
        self._last_chunk = time.monotonic()

    def close(self) -> None:
        """The run is over: end them."""
        self.system.close()

    def metrics(self) -> dict[str, float | str | None]:
        """Metrics of the actors for the log, by name."""
        board = self.system.board
        counts = {name: int(numbers[ACTORS].sum()) for name, numbers in board.counts.items()}
        seconds = {name: float(numbers[ACTORS].sum()) for name, numbers in board.seconds.items()}
        steps, pulls = counts["steps"], counts["pulls"]
        lags = np.array(self.lags) if self.lags else None
        return {
            "actors/lag_mean": None if lags is None else float(lags.mean()),
            "actors/lag_p95": None if lags is None else float(np.percentile(lags, 95)),
            "actors/samples_per_insert": self.limiter.achieved,
            "actors/learner_wait_seconds": self.waited,
            "actors/actor_wait_seconds": seconds["wait"],
            "actors/bottleneck": self.bottleneck()[0],
            "actors/step_us": 1e6 * seconds["act"] / steps if steps else None,
            "actors/environment_us": 1e6 * seconds["environment"] / steps if steps else None,
            "actors/pull_ms": 1e3 * seconds["pull"] / pulls if pulls else None,
            "actors/load_ms": 1e3 * seconds["load"] / pulls if pulls else None,
            "actors/bytes_per_pull": counts["bytes"] / pulls if pulls else None,
            "actors/replaced": float(self.system.replaced),
            "actors/refused": float(counts["refused"] + sum(queue.refused for queue in self.system.queues)),
        }

    def _actors_waited(self) -> float:
        return float(self.system.board.seconds["wait"][ACTORS].sum())

    def bottleneck(self) -> tuple[str, float, float]:
        """Which side the other waits for, and the shares of the time that the learner and the actors waited."""
        now = time.monotonic()
        passed = max(now - (now if self._begun is None else self._begun), 1e-9)
        # a cluster's actors report a wait when it is over, one from before the first chunk among them
        waited = min((self._actors_waited() - self._waited_before) / (passed * self.config.actors), 1.0)
        learner = self.waited / passed
        return ("actors" if learner > waited else "learner"), learner, waited

    def summary(self) -> str:
        """One sentence on how the run went; empty where no chunk has come yet."""
        if self._begun is None:
            return ""
        side, learner, waited = self.bottleneck()
        achieved = self.limiter.achieved
        target = f" (set: {self.limiter.ratio:.3g})" if self.limiter.binding else ""
        ratio = "" if achieved is None else f", {achieved:.3g} samples per insert{target}"
        return (
            f"The learner waited {learner:.0%} of the time and the actors {waited:.0%}: the bottleneck is the "
            f"{side if side == 'learner' else 'actors’ side'}{ratio}."
        )

    def state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        """Counters; what the actors are doing is not kept: they begin new episodes."""
        arrays, counters = super().state()
        return arrays, {**counters, "inserts": self.limiter.inserts, "sampled": self.limiter.samples}

    def load_state(self, arrays: dict[str, NDArray], counters: dict[str, Any]) -> None:
        super().load_state(arrays, counters)
        self.limiter.inserts, self.limiter.samples = counters["inserts"], counters["sampled"]
