"""The quantizer and the actors of a run: in processes of this machine, or (`cluster.py`) on a Ray cluster."""

import contextlib
import dataclasses
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shoal.actorq.board import Board
from shoal.actorq.broadcast import RecentStates
from shoal.actorq.chunks import ChunkLayout, ChunkQueue
from shoal.actorq.heartbeat import SILENT, WatchedChild
from shoal.actorq.player import Play
from shoal.actorq.versions import Versions
from shoal.envs.base import EnvSpec
from shoal.errors import UserError, counted
from shoal.inference.layers import Array
from shoal.inference.policy import Policy
from shoal.seeding import stream_seed
from shoal.system.child import Message, ended
from shoal.system.memory import check_fits
from shoal.system.shared_memory import SharedMemory
from shoal.training.config import TrainConfig

QUANTIZER, ACTORS = 0, slice(1, None)  # places on the board
SLOTS = 4  # chunks that an actor may be ahead of the learner
WATCH = 0.1  # seconds between looks at the processes
PROCESS_BYTES = {"torch": 250_000_000}
"""Private memory of an actor with that engine and small worlds, without its policy.

Private_Clean + Private_Dirty in /proc/PID/smaps_rollup of running actors on x86-64 Linux, in MB:

    world                     numba   native   onnx   torch   quantizer
    cooperative-navigation       92       73     86     199          68
    gym:CartPole-v1              70       73     84     199          68
    dm:walker/stand             100      102    121     227          68
"""
OTHER_PROCESS_BYTES = 130_000_000
QUANTIZER_BYTES = 70_000_000
DEATHS = 3  # a process that dies so often before it has done anything is given up


@dataclass
class Post:
    """The place of one process: how often it was filled, and how often in vain."""

    index: int  # on the board
    started: int = 0
    barren: int = 0  # processes in a row that died before they had done anything

    @property
    def actor(self) -> int:
        """Which actor it is."""
        return self.index - 1


class ActorSystem(ABC):
    """The quantizer and the actors of a run, as the learner sees them."""

    def __init__(
        self, config: TrainConfig, spec: EnvSpec, policy: Policy, play: Play, chunk_steps: int, slots: int
    ) -> None:
        """`slots`: chunks that each actor may be ahead of the learner."""
        self.config, self.policy, self.play = config, policy, play
        self.template = np.frombuffer(policy.to_bytes(), np.uint8)
        if config.cluster in (None, "local"):
            each = PROCESS_BYTES.get(play.engine, OTHER_PROCESS_BYTES)
            each += 3 * self.template.nbytes  # two versions and the engine's
            check_fits(
                f"Running {counted(config.actors, 'actor process', 'actor processes')}",
                each * config.actors,
                lambda usable: f"at most {usable // each} fit (`actors`)",
                reserved=QUANTIZER_BYTES,
            )
        self.published = 0
        """Versions that the learner has published."""
        self.replaced = 0
        """Processes that were restarted."""
        self.recent = RecentStates(play.states, spec)
        """States that biases are corrected on."""
        self.layout = ChunkLayout(spec, config.copies, chunk_steps)
        self.board = Board(1 + config.actors)
        """What the quantizer and the actors have counted."""
        self.queues = [ChunkQueue(self.layout, slots) for _ in range(config.actors)]
        """Experience, one queue per actor."""
        self._samples = 0

    @abstractmethod
    def start(self, samples: int) -> None:
        """Start quantizer and actors, after so many samples of the run: a resumed one plays other episodes."""

    @abstractmethod
    def publish(self, numbers: Array, version: int) -> None:
        """Hand the policy's numbers to the quantizer, with recent states behind them; nobody waits."""

    @abstractmethod
    def watch(self, wanted: bool = True) -> None:
        """Check on them now and then: their faults are raised here, dead and silent ones are restarted.

        Only where more experience is `wanted`, actors on a cluster are called for it; others find out by themselves,
        when their queue is full.
        """

    @abstractmethod
    def close(self) -> None:
        """End them all."""

    def actor_spec(self, post: Post) -> Message:
        """The specification of the process at an actor's post, wherever it runs.

        The standard deviations of the actors' noise are spread evenly from 0 to twice that of a single one.
        """
        assert self.policy.exploration is not None
        noise, actors = self.config.exploration_noise, self.config.actors
        if actors > 1:
            noise = 2 * noise * post.actor / (actors - 1)
        return {
            "config": dataclasses.asdict(self.config),
            "play": dataclasses.asdict(self.play),
            "chunk_steps": self.layout.steps,
            "deviation": None if self.policy.exploration.values else noise,
            **seeds(self.config.seed, post.actor, self._samples, post.started),
        }

    def count_death(self, post: Post, barren: bool, reason: str) -> None:
        """A process has died; `barren`: before it had done anything, which may not happen too often in a row."""
        post.barren = post.barren + 1 if barren else 0
        if post.barren >= DEATHS:
            name = "The quantizer" if post.index == QUANTIZER else f"Actor {post.actor}"
            raise UserError(
                f"{name} failed {counted(DEATHS, 'time')} in a row before it had sent anything: it {reason}."
            )
        self.replaced += 1


@dataclass
class LocalPost(Post):
    """A process of this machine."""

    child: WatchedChild | None = None
    done: int = 0  # what the post had done when its present process was started


class LocalSystem(ActorSystem):
    """The quantizer and the actors in processes of this machine, with shared memory between them and the learner."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, policy: Policy, play: Play, chunk_steps: int) -> None:
        super().__init__(config, spec, policy, play, chunk_steps, SLOTS)
        self._template = SharedMemory(self.template.nbytes)
        self._template.array(np.uint8, self.template.shape)[:] = self.template
        self.numbers = Versions(4 * policy.parameters + 8 + self.recent.row.nbytes)
        self.payloads = Versions(play.payload(policy, np.zeros(policy.parameters, np.float32)).nbytes)
        self.posts = [LocalPost(index) for index in range(1 + config.actors)]
        self._processors = own_processors(config.actors)
        self._watched = 0.0

    def start(self, samples: int) -> None:
        self._watched, self._samples = time.monotonic(), samples
        for post in self.posts:
            self._fill(post)

    def publish(self, numbers: Array, version: int) -> None:
        self.published += 1
        row = self.recent.behind(numbers) if self.play.states else numbers
        self.numbers.publish(row.view(np.uint8), version)

    def watch(self, wanted: bool = True) -> None:
        now = time.monotonic()
        passed = now - self._watched
        if passed < WATCH:
            return
        self._watched = now
        for post in self.posts:
            # of a time in which this process itself was stopped, only a part counts
            if post.child is not None and not post.child.alive(
                self.board.counts["ticks"][post.index], min(passed, 1.0)
            ):
                post.child.raise_fault()
                self._replace(post)

    def close(self) -> None:
        """End all processes; those that do not end by themselves are killed."""
        self.board.stop()
        deadline = time.monotonic() + 1.0
        for post in self.posts:
            if post.child is not None:
                while post.child.process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.005)
                post.child.kill()
                post.child = None
        for memory in self._memory().values():
            memory.close()
        for queue in self.queues:
            queue.memory.close()

    def _fill(self, post: LocalPost) -> None:
        """Start a process for a post."""
        post.done = self._done(post)
        memory = self._memory()
        if post.index != QUANTIZER:
            memory["chunks"] = self.queues[post.actor].memory
        module = "shoal.actorq.quantizer" if post.index == QUANTIZER else "shoal.actorq.actor"
        descriptors = [block.descriptor for block in memory.values()]
        ticks = int(self.board.counts["ticks"][post.index])
        post.child = WatchedChild(module, self.spec_of(post, memory), descriptors, post.index, ticks)
        post.started += 1

    def spec_of(self, post: LocalPost, memory: dict[str, SharedMemory]) -> Message:
        """The specification of the process at a post."""
        spec = {name: block.spec for name, block in memory.items()} | {
            "children": len(self.posts),
            "policy_bytes": self.template.nbytes,
            "payload_bytes": self.payloads.size,
        }
        if post.index != QUANTIZER:
            return spec | {**self.actor_spec(post), "slots": SLOTS, "processor": self._processors[post.actor]}
        play = dataclasses.asdict(self.play)
        return spec | {"play": play, "numbers_bytes": self.numbers.size, "observations": self.recent.shape[1:]}

    def _memory(self) -> dict[str, SharedMemory]:
        """What all processes share."""
        return {
            "board": self.board.memory,
            "policy": self._template,
            "numbers": self.numbers.memory,
            "payloads": self.payloads.memory,
        }

    def _replace(self, post: LocalPost) -> None:
        """A new process in place of one that is dead or silent; what it had not sent is lost."""
        assert post.child is not None
        code = post.child.process.poll()
        post.child.kill()
        self.count_death(post, self._done(post) <= post.done, ending(code))
        self._fill(post)

    def _done(self, post: LocalPost) -> int:
        """Chunks that an actor has sent; versions that the quantizer has broadcast."""
        if post.index == QUANTIZER:
            return int(self.board.counts["steps"][QUANTIZER])
        return self.queues[post.actor].sent


def seeds(seed: int, actor: int, samples: int, started: int) -> dict[str, int]:
    """Of an actor's worlds and noise; the first actor of a run begins as the loop without actors does."""
    if (actor, samples, started) == (0, 0, 0):
        return {"world_seed": seed, "noise_seed": stream_seed(seed, "exploration")}
    name = f"actor {actor} after {samples} samples, {started} before it"
    return {kind: stream_seed(seed, f"{name}: {kind}") % 2**62 for kind in ("world_seed", "noise_seed")}


def ending(code: int | None) -> str:
    """How a process ended, and what may help; None: it was still there, but silent."""
    if code is None:
        return (
            f"sent no heartbeat for {SILENT:g} seconds; an environment that blocks the Python interpreter for so "
            "long can only be trained with `actors=0`"
        )
    return ended(code) + ("; use fewer `actors`" if code == -signal.SIGKILL else "")


def own_processors(actors: int) -> Sequence[int | None]:
    """A processor of its own for each actor, if there are enough for all of them and the learner, else none.

    Processors that other programs are pinned to, e.g. the actors of another run, do not count.
    """
    free: list[int] = []
    if hasattr(os, "sched_getaffinity"):
        free = sorted(os.sched_getaffinity(0) - pinned_processors())
    return free[1 : 1 + actors] if len(free) > actors else [None] * actors


def pinned_processors() -> set[int]:
    """Processors that a running program is pinned to alone."""
    pinned: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is not ours to look at
            processors = os.sched_getaffinity(int(folder.name))
            if len(processors) == 1 and (folder / "cmdline").read_bytes():  # threads of the kernel have no command line
                pinned |= processors
    return pinned
