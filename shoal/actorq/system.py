"""All processes of a run with actors: shared memory for them, starting, watching and replacing them, ending them."""

import contextlib
import dataclasses
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal.actorq.board import Board
from shoal.actorq.child import SILENT, WatchedChild
from shoal.actorq.chunks import ChunkLayout, ChunkQueue
from shoal.actorq.player import Play
from shoal.actorq.recent import RecentStates
from shoal.actorq.versions import Versions, versions_bytes
from shoal.envs.base import EnvSpec
from shoal.errors import UserError, counted
from shoal.inference.layers import Array
from shoal.inference.policy import Policy
from shoal.seeding import stream_seed
from shoal.system.child import ended
from shoal.system.memory import check_fits
from shoal.system.shared_memory import SharedMemory
from shoal.training.config import TrainConfig

QUANTIZER = 0
"""The quantizer's place on the board; actors follow."""
SLOTS = 4
"""Chunks that an actor may be ahead of the learner."""
WATCH = 0.1
"""Seconds between looks at the processes."""
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
DEATHS = 3
"""A process that dies so often before it has done anything is given up."""


@dataclass
class Post:
    """One process's place: who holds it now, and how often it was filled anew."""

    module: str
    spec: dict[str, Any]
    descriptors: list[int]
    index: int
    child: WatchedChild | None = None
    started: int = 0
    barren: int = 0
    """Processes in a row that died before they had done anything."""
    done: int = 0
    """What the post had done when its present process was started."""


class Playing(Protocol):
    """The actors of a run, as the learner sees them: processes of this machine, or actors of a Ray cluster."""

    config: TrainConfig
    play: Play
    queues: list[ChunkQueue]
    """Experience, one queue per actor."""
    board: Board
    """What the quantizer and the actors have counted, the quantizer first."""
    replaced: int
    """Actors and quantizers that were started anew."""
    recent: RecentStates
    """States that biases are corrected on."""

    @property
    def published(self) -> int:
        """Versions that the learner has published."""
        ...

    def start(self, samples: int) -> None:
        """Start quantizer and actors, after so many samples of the run: a resumed one plays other episodes."""
        ...

    def publish(self, numbers: Array, version: int) -> None:
        """Hand the policy's numbers to the quantizer; nobody waits."""
        ...

    def watch(self, wanted: bool) -> None:
        """Look after them: a fault of theirs is raised here, who died is replaced.

        Args:
            wanted: Whether more experience may go in. Actors on a cluster are called for more only then; others find
                out by themselves, when their queue is full.
        """
        ...

    def close(self) -> None:
        """End them all."""
        ...


class ActorSystem:
    """The quantizer and the actors of a run in processes of this machine."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, policy: Policy, play: Play, chunk_steps: int) -> None:
        self.config, self.policy, self.play = config, policy, play
        self.replaced = 0
        """Processes that were started anew."""
        self.children = 1 + config.actors
        self._layout = ChunkLayout.of(spec, config.copies, chunk_steps)
        template = policy.to_bytes()
        check_room(config.actors, play.engine, len(template))
        self.recent = RecentStates(play.states, spec)
        self._numbers_bytes = 4 * policy.parameters + 8 + self.recent.row.nbytes
        self._payload_bytes = play.payload(policy, np.zeros(policy.parameters, np.float32)).nbytes
        sizes = {
            "board": Board.nbytes(self.children),
            "policy": len(template),
            "numbers": versions_bytes(self._numbers_bytes),
            "payloads": versions_bytes(self._payload_bytes),
        }
        self.memory = {name: SharedMemory(size) for name, size in sizes.items()}
        self.memory["policy"].array(np.uint8, (len(template),))[:] = np.frombuffer(template, np.uint8)
        self.board = Board(self.memory["board"], self.children)
        self.numbers = Versions(self.memory["numbers"], self._numbers_bytes)
        self.payloads = Versions(self.memory["payloads"], self._payload_bytes)
        self.queues: list[ChunkQueue] = []
        self.posts = [self._quantizer(len(template))]
        self._chunks = [SharedMemory(ChunkQueue.nbytes(self._layout, SLOTS)) for _ in range(config.actors)]
        processors = own_processors(config.actors)
        for k, chunks in enumerate(self._chunks):
            self.queues.append(ChunkQueue(chunks, self._layout, SLOTS))
            self.posts.append(self._actor(k, len(template), chunks, processors[k]))
        self._watched, self._samples = 0.0, 0

    @property
    def running(self) -> bool:
        """Whether the processes have been started."""
        return self.posts[0].child is not None

    def start(self, samples: int) -> None:
        """Start all processes, after so many samples of the run: a resumed one plays other episodes."""
        self._watched, self._samples = time.monotonic(), samples
        for post in self.posts:
            self._fill(post)

    @property
    def published(self) -> int:
        """Versions that the learner has published."""
        return self.numbers.latest

    def publish(self, numbers: Array, version: int) -> None:
        """Hand the policy's numbers to the quantizer, with recent states behind them; nobody waits."""
        row = self.recent.behind(numbers) if self.play.states else numbers
        self.numbers.publish(row.view(np.uint8), version)

    def watch(self, wanted: bool = True) -> None:
        """Look after the processes now and then: a fault of theirs is raised here, a dead or silent one replaced."""
        now = time.monotonic()
        passed = now - self._watched
        if passed < WATCH or not self.running:
            return
        self._watched = now
        for post in self.posts:
            assert post.child is not None
            # of a time in which this process itself was stopped, only a part counts
            if not post.child.alive(self.board.count(post.index, "ticks"), min(passed, 1.0)):
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
        for memory in (*self.memory.values(), *self._chunks):
            memory.close()

    def _fill(self, post: Post) -> None:
        """Start a process for a post."""
        post.done = self._done(post)
        spec = post.spec | seeds(self.config.seed, post.index - 1, self._samples, post.started)
        ticks = self.board.count(post.index, "ticks")
        post.child = WatchedChild(post.module, spec, post.descriptors, post.index, ticks)
        post.started += 1

    def _replace(self, post: Post) -> None:
        """A new process in place of one that is dead or silent; what it had not sent is lost."""
        assert post.child is not None
        code = post.child.process.poll()
        post.child.kill()
        post.barren = 0 if self._done(post) > post.done else post.barren + 1
        if post.barren >= DEATHS:
            what = "The quantizer" if post.index == QUANTIZER else f"Actor {post.index - 1}"
            times = counted(DEATHS, "time")
            raise UserError(f"{what} failed {times} in a row before it had sent anything: it {ending(code)}.")
        self.replaced += 1
        self._fill(post)

    def _done(self, post: Post) -> int:
        """Chunks that an actor has sent; versions that the quantizer has broadcast."""
        if post.index == QUANTIZER:
            return self.board.count(QUANTIZER, "steps")
        return self.queues[post.index - 1].sent

    def _common(self, template: int) -> dict[str, Any]:
        """What the specifications of all processes have in common."""
        shared = {name: {"descriptor": memory.descriptor, "size": memory.size} for name, memory in self.memory.items()}
        return shared | {
            "children": self.children,
            "policy_bytes": template,
            "payload_bytes": self._payload_bytes,
            "play": dataclasses.asdict(self.play),
        }

    def _quantizer(self, template: int) -> Post:
        spec = self._common(template) | {"numbers_bytes": self._numbers_bytes, "seen": self.recent.shape[1:]}
        descriptors = [memory.descriptor for memory in self.memory.values()]
        return Post("shoal.actorq.quantizer", spec, descriptors, QUANTIZER)

    def _actor(self, k: int, template: int, chunks: SharedMemory, processor: int | None) -> Post:
        config, policy = self.config, self.policy
        assert policy.exploration is not None
        deviation = None if policy.exploration.values else deviation_of(k, config.actors, config.exploration_noise)
        spec = self._common(template) | {
            "config": dataclasses.asdict(config),
            "chunks": {"descriptor": chunks.descriptor, "size": chunks.size},
            "chunk_steps": self._layout.steps,
            "slots": SLOTS,
            "processor": processor,
            "deviation": deviation,
        }
        descriptors = [chunks.descriptor, *(memory.descriptor for memory in self.memory.values())]
        return Post("shoal.actorq.actor", spec, descriptors, 1 + k)


def check_room(actors: int, engine: str, template: int) -> None:
    """Refuse more actors than memory has room for, with a policy of so many bytes."""
    each = PROCESS_BYTES.get(engine, OTHER_PROCESS_BYTES) + 3 * template  # two versions and the engine's
    check_fits(
        f"Running {counted(actors, 'actor process', 'actor processes')}",
        each * actors,
        lambda usable: f"at most {usable // each} fit (--actors)",
        reserved=QUANTIZER_BYTES,
    )


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
            "long can only be trained with --actors 0"
        )
    return ended(code) + ("; use fewer --actors" if code == -signal.SIGKILL else "")


def own_processors(actors: int) -> list[int | None]:
    """A processor of its own for each actor, if there are enough for all of them and the learner, else none.

    Processors that other programs are pinned to, e.g. the actors of another run, do not count.
    """
    free: list[int] = []
    if hasattr(os, "sched_getaffinity"):
        free = sorted(os.sched_getaffinity(0) - pinned_processors())
    return [*free[1 : 1 + actors]] if len(free) > actors else [None] * actors


def pinned_processors() -> set[int]:
    """Processors that a running program is pinned to alone."""
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is not ours to look at
            processors = os.sched_getaffinity(int(folder.name))
            if len(processors) == 1 and (folder / "cmdline").read_bytes():  # threads of the kernel have no command line
                found |= processors
    return found


def deviation_of(actor: int, actors: int, noise: float) -> float:
    """Standard deviation of an actor's exploration: spread evenly from 0 to twice the noise of a single one."""
    return noise if actors == 1 else 2 * noise * actor / (actors - 1)
