"""A run with actors on a Ray cluster: the learner's side.

An actor is called for one chunk after the other, and each call carries a reference to the newest version of the policy.
What the actors play and how versions are converted is the code of runs on one machine (`actor.py`, `player.py`).
"""

import dataclasses
import json
import os
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.actorq.board import Board
from shoal.actorq.chunks import ChunkLayout, ChunkQueue
from shoal.actorq.connect import (
    check_cpus,
    check_nodes,
    check_running,
    connect,
    import_ray,
    in_a_line,
    told_if_gone,
)
from shoal.actorq.heartbeat import GROUP, Heartbeat, silence
from shoal.actorq.player import Play
from shoal.actorq.recent import RecentStates
from shoal.actorq.remote import USERS, RemoteActor, RemoteQuantizer, source_digest
from shoal.actorq.system import DEATHS, check_room, deviation_of, seeds
from shoal.envs.base import EnvSpec
from shoal.errors import UserError, counted
from shoal.inference.layers import Array
from shoal.inference.policy import Policy
from shoal.system.child import thread_limits
from shoal.system.shared_memory import SharedMemory
from shoal.training.config import TrainConfig

AHEAD = 3
"""Chunks that an actor has been called for and that the learner has not taken in: while one travels, another is played
and one more is due."""
FETCH = 30.0
"""Seconds in which a chunk that is here already must be readable."""
LOOK = 1.0
"""Seconds between checks of the heartbeats."""
STORE = 100_000_000
"""Bytes of a local Ray's object store, at least."""
LONGEST_FOLDER = 40
"""Characters of a folder for Ray's sockets, whose paths may have 107 in all."""


@dataclass
class Post:
    """One actor's place: who holds it now, and the calls that it has not answered."""

    actor: int
    handle: Any = None
    heartbeat: Heartbeat | None = None
    calls: deque[Any] = field(default_factory=deque)
    started: int = 0
    barren: int = 0
    """Actors in a row that died before their first chunk."""


@dataclass
class Conversion:
    """Numbers that are with the quantizer."""

    payload: Any
    numbers: Array
    version: int


class ClusterSystem:
    """The quantizer and the actors of a run on a Ray cluster."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, policy: Policy, play: Play, chunk_steps: int) -> None:
        self.config, self.play = config, play
        self.ray = import_ray()
        self.replaced = self.published = 0
        self._policy = np.frombuffer(policy.to_bytes(), np.uint8)
        if config.cluster == "local":
            check_room(config.actors, play.engine, self._policy.nbytes)
        self._layout = ChunkLayout.of(spec, config.copies, chunk_steps)
        self.recent = RecentStates(play.states, spec)
        self.board = Board(SharedMemory(Board.nbytes(1 + config.actors)), 1 + config.actors)
        size = ChunkQueue.nbytes(self._layout, AHEAD)
        self.queues = [ChunkQueue(SharedMemory(size), self._layout, AHEAD) for _ in range(config.actors)]
        self.posts = [Post(k) for k in range(config.actors)]
        values = policy.exploration is not None and policy.exploration.values
        self._deviations = [
            None if values else deviation_of(k, config.actors, config.exploration_noise) for k in range(config.actors)
        ]
        self._told = {"config": dataclasses.asdict(config), "play": dataclasses.asdict(play), "index": 0, "slots": 1}
        self._told |= {"chunk_steps": chunk_steps, "digest": None if config.cluster == "local" else source_digest()}
        self._samples = self._barren = 0
        self._looked = time.monotonic()
        self._quantizer: Any = None
        self._quantizer_heartbeat: Heartbeat | None = None
        self._waiting: tuple[Array, int] | None = None  # the newest numbers, if the quantizer does not have them yet
        self._converting: Conversion | None = None
        self._newest: tuple[Any, int, int] | None = None  # payload, number and version of what actors are handed
        self._connected = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    # ---- what the learner asks for -----------------------------------------------------------------------------------

    def start(self, samples: int) -> None:
        """Connect to the cluster, check its nodes, and start quantizer and actors."""
        self._samples = samples
        self._connect()
        if self.config.cluster != "local":
            check_nodes(self.ray)
        check_cpus(self.ray, self.config.actors)
        self._template = self.ray.put(self._policy)
        self._start_quantizer()
        for post in self.posts:
            self._fill(post)

    def publish(self, numbers: Array, version: int) -> None:
        """Hand the policy's numbers to the quantizer, now or when it is done with others; nobody waits."""
        self.published += 1
        self._waiting = self.recent.behind(numbers), version
        self._convert()

    def watch(self, wanted: bool) -> None:
        """Take in what has come, and call for more; a fault is raised here, who died is replaced."""
        if self._quantizer is None:
            return
        due = [post.calls[0] for post in self.posts if post.calls]
        due += [self._converting.payload] if self._converting else []
        with told_if_gone():
            ready = set(self.ray.wait(due, num_returns=len(due), timeout=0)[0]) if due else set()
        self._look()
        if self._converting and self._converting.payload in ready:
            self._take_version(self._converting)
        for post in self.posts:
            if post.calls and post.calls[0] in ready:
                self._take_chunk(post)
            while wanted and self._newest and len(post.calls) + self.queues[post.actor].waiting < AHEAD:
                payload, number, version = self._newest
                post.calls.append(post.handle.play.remote([payload], number, version, self.board.exploration))

    def close(self) -> None:
        """Leave the cluster: what was started for this run ends, a local Ray whole."""
        self._quantizer = self._quantizer_heartbeat = self._newest = self._converting = None
        for post in self.posts:
            post.handle = post.heartbeat = None
            post.calls.clear()
        if self._connected:
            self.ray.shutdown()
            self._connected = False
        if self._folder is not None:
            self._folder.cleanup()

    def _look(self) -> None:
        """Now and then: replace who does not answer, because it is stopped or frozen: to Ray it is alive."""
        passed = time.monotonic() - self._looked
        if passed < LOOK:
            return
        self._looked += passed
        if self.config.cluster == "local":
            check_running(self.ray)
        passed = min(passed, 2 * LOOK)  # of a time in which this process itself was stopped, only a part counts
        if self._quantizer_heartbeat is not None and self._quantizer_heartbeat.silent(passed):
            self._replace_quantizer(silence())
        for post in self.posts:
            if post.heartbeat is not None and post.heartbeat.silent(passed):
                self._replace_actor(post, silence())

    # ---- versions ----------------------------------------------------------------------------------------------------

    def _start_quantizer(self) -> None:
        """On the learner's node, so that versions are there when actors elsewhere ask for them."""
        here = self.ray.get_runtime_context().get_node_id()
        strategy = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
        remote = self._remote(RemoteQuantizer, num_cpus=0, scheduling_strategy=strategy)
        self._quantizer = remote.remote(json.dumps(self._told["play"]), self._template)
        self._quantizer_heartbeat = Heartbeat(self.ray, self._quantizer)
        self._convert()

    def _convert(self) -> None:
        """Hand over the newest numbers if the quantizer is there and has nothing to do."""
        if self._quantizer is not None and self._converting is None and self._waiting is not None:
            numbers, version = self._waiting
            payload = self._quantizer.convert.remote(numbers, self.recent.shape[1:])
            self._converting = Conversion(payload, numbers, version)
            self._waiting = None

    def _take_version(self, done: Conversion) -> None:
        """Hand a converted version to the actors from now on; a quantizer that died is replaced."""
        try:
            self.ray.get(done.payload, timeout=FETCH)
        except self.ray.exceptions.RayTaskError as error:
            raise fault("quantizer", error) from None
        except self.ray.exceptions.RayError as error:
            self._replace_quantizer(in_a_line(error))
            return
        self._converting = None
        self._barren = 0
        self._newest = done.payload, 1 + (self._newest[1] if self._newest else 0), done.version
        self._convert()

    def _replace_quantizer(self, reason: str) -> None:
        """A new quantizer, which gets the newest numbers."""
        self._barren += 1
        self._count_death("quantizer", self._barren, reason)
        self.ray.kill(self._quantizer)
        if self._converting is not None:
            self._waiting = self._waiting or (self._converting.numbers, self._converting.version)
            self._converting = None
        self._start_quantizer()

    # ---- experience --------------------------------------------------------------------------------------------------

    def _take_chunk(self, post: Post) -> None:
        """Put the oldest chunk that an actor was called for into its queue; an actor that died is replaced."""
        try:
            message = self.ray.get(post.calls[0], timeout=FETCH)
        except self.ray.exceptions.RayTaskError as error:
            raise fault("actor", error) from None
        except self.ray.exceptions.RayError as error:  # it died, or its node with what it had played
            self._replace_actor(post, in_a_line(error))
            return
        post.calls.popleft()
        post.barren = 0
        self.queues[post.actor].load(message[: self._layout.nbytes])
        self.board.give(1 + post.actor, message[self._layout.nbytes :])

    def _replace_actor(self, post: Post, reason: str) -> None:
        post.barren += 1
        self._count_death(f"actor {post.actor}", post.barren, reason)
        self._fill(post)

    def _fill(self, post: Post) -> None:
        """A new actor for a post, wherever there is a CPU for it; what the one before had not sent is lost."""
        if post.handle is not None:
            self.ray.kill(post.handle)
        post.calls.clear()
        told = self._told | {"deviation": self._deviations[post.actor], "sent": self.queues[post.actor].sent}
        told |= seeds(self.config.seed, post.actor, self._samples, post.started)
        remote = self._remote(RemoteActor, num_cpus=1, scheduling_strategy="SPREAD")
        post.handle = remote.remote(json.dumps(told), self._template)
        post.heartbeat = Heartbeat(self.ray, post.handle)
        post.started += 1

    def _count_death(self, what: str, barren: int, reason: str) -> None:
        if barren >= DEATHS:
            raise UserError(
                f"The {what} died {counted(DEATHS, 'time')} in a row before it had done anything: {reason}."
            )
        self.replaced += 1

    # ---- Ray ---------------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Connect to the cluster, or start one on this machine."""
        ray, address = self.ray, self.config.cluster
        assert address is not None
        if ray.is_initialized():
            raise UserError("This program is connected to Ray already; call ray.shutdown() before training.")
        settings: dict[str, Any] = {}
        if address == "local":
            folder = tempfile.gettempdir()
            self._folder = tempfile.TemporaryDirectory(
                prefix="ray-", dir=folder if len(folder) < LONGEST_FOLDER else "/tmp", ignore_cleanup_errors=True
            )
            settings |= {
                "num_cpus": self.config.actors,
                "object_store_memory": self._store_bytes(),
                "_temp_dir": self._folder.name,
            }
        self._connected = True
        connect(ray, address, settings)

    def _store_bytes(self) -> int:
        """Room for every chunk and version that can be on its way in a local Ray, twice."""
        chunks = (AHEAD + 1) * self.config.actors * self._layout.nbytes
        versions = (AHEAD + 2 + self.config.actors) * self._policy.nbytes
        return max(STORE, 2 * (chunks + versions))

    def _remote(self, cls: type, **options: Any) -> Any:
        """A class as Ray starts it: with one thread, and never again by itself."""
        variables = thread_limits(1)
        if self.config.cluster == "local":  # what the learner can import; other nodes have their own paths
            variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        return self.ray.remote(concurrency_groups=GROUP)(cls).options(
            max_restarts=0, runtime_env={"env_vars": variables}, **options
        )


def fault(what: str, error: Any) -> Exception:
    """What `remote.reported` told, as an exception of the learner's."""
    kind, text = error.cause.args if len(error.cause.args) == 2 else ("", error)
    return UserError(f"The {what} failed: {text}") if kind == USERS else RuntimeError(f"the {what} failed:\n{text}")
