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

from shoal.actorq.connect import check_cpus, check_nodes, check_running, connect, import_ray, in_a_line, told_if_gone
from shoal.actorq.heartbeat import GROUP, SILENT_ON_RAY, RayHeartbeat
from shoal.actorq.player import Play
from shoal.actorq.remote import USERS, RemoteActor, RemoteQuantizer, source_digest
from shoal.actorq.system import QUANTIZER, ActorSystem, Post
from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.inference.layers import Array
from shoal.inference.policy import Policy
from shoal.system.child import thread_limits
from shoal.training.config import TrainConfig

AHEAD = 3
"""Chunks that an actor has been called for and that the learner has not taken in: while one travels, another is played
and one more is due."""
FETCH = 30.0  # seconds in which a chunk that is here already must be readable
LOOK = 1.0  # seconds between checks of the heartbeats
STORE = 100_000_000  # bytes of a local Ray's object store, at least
LONGEST_FOLDER = 40  # characters of a folder for Ray's sockets, whose paths may have 107 in all


@dataclass
class RemotePost(Post):
    """An actor of the cluster, and the calls that it has not answered."""

    handle: Any = None
    heartbeat: RayHeartbeat | None = None
    calls: deque[Any] = field(default_factory=deque)


class ClusterSystem(ActorSystem):
    """The quantizer and the actors of a run on a Ray cluster."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, policy: Policy, play: Play, chunk_steps: int) -> None:
        self.ray = import_ray()
        super().__init__(config, spec, policy, play, chunk_steps, AHEAD)
        self.quantizer, *self.posts = (RemotePost(index) for index in range(1 + config.actors))
        self._digest = None if config.cluster == "local" else source_digest()
        self._looked = time.monotonic()
        self._template: Any = None
        self._waiting: tuple[Array, int] | None = None  # the newest numbers, if the quantizer does not have them yet
        self._converting: tuple[Any, Array, int] | None = None  # payload, numbers and version that it has
        self._newest: tuple[Any, int, int] | None = None  # payload, number and version of what actors are handed
        self._connected = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self, samples: int) -> None:
        """Connect to the cluster, check its nodes, and start quantizer and actors."""
        self._samples = samples
        self._connect()
        if self.config.cluster != "local":
            check_nodes(self.ray)
        check_cpus(self.ray, self.config.actors)
        self._template = self.ray.put(self.template)
        for post in (self.quantizer, *self.posts):
            self._fill(post)

    def publish(self, numbers: Array, version: int) -> None:
        self.published += 1
        self._waiting = self.recent.behind(numbers), version
        self._convert()

    def watch(self, wanted: bool = True) -> None:
        if self.quantizer.handle is None:
            return
        due = [post.calls[0] for post in self.posts if post.calls]
        due += self._converting[:1] if self._converting else []
        with told_if_gone():
            ready = set(self.ray.wait(due, num_returns=len(due), timeout=0)[0]) if due else set()
        self._look()
        payload, _, version = self._converting or (None, None, 0)
        if payload in ready and self._fetched(self.quantizer, payload) is not None:
            self._converting = None
            self._newest = payload, 1 + (self._newest[1] if self._newest else 0), version
            self._convert()
        for post in self.posts:
            if post.calls and post.calls[0] in ready:
                message = self._fetched(post, post.calls[0])
                if message is not None:
                    post.calls.popleft()
                    self.queues[post.actor].load(message[: self.layout.nbytes])
                    self.board.give(post.index, message[self.layout.nbytes :])
            while wanted and self._newest and len(post.calls) + self.queues[post.actor].waiting < AHEAD:
                payload, number, version = self._newest
                post.calls.append(post.handle.play.remote([payload], number, version, self.board.exploration))

    def close(self) -> None:
        """Leave the cluster: what was started for this run ends, a local Ray whole."""
        self._newest = self._converting = None
        for post in (self.quantizer, *self.posts):
            post.handle = post.heartbeat = None
            post.calls.clear()
        if self._connected:
            self.ray.shutdown()
            self._connected = False
        if self._folder is not None:
            self._folder.cleanup()

    # ---- processes ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Now and then: replace those that do not answer, because they are stopped or frozen: to Ray they are alive."""
        passed = time.monotonic() - self._looked
        if passed < LOOK:
            return
        self._looked += passed
        if self.config.cluster == "local":
            check_running(self.ray)
        passed = min(passed, 2 * LOOK)  # of a time in which this process itself was stopped, only a part counts
        for post in (self.quantizer, *self.posts):
            if post.heartbeat is not None and post.heartbeat.silent(passed):
                self._replace(post, f"sent no heartbeat for {SILENT_ON_RAY:g} seconds")

    def _replace(self, post: RemotePost, reason: str) -> None:
        """A new actor, or a new quantizer, which gets the newest numbers."""
        self.count_death(post, True, reason)
        self.ray.kill(post.handle)
        self._fill(post)

    def _fill(self, post: RemotePost) -> None:
        """Start the quantizer, or an actor wherever there is a CPU for it; what the one before had not sent is lost."""
        if post.index == QUANTIZER:  # on the learner's node, so that versions are there when actors elsewhere ask
            here = self.ray.get_runtime_context().get_node_id()
            strategy = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
            remote = self._remote(RemoteQuantizer, num_cpus=0, scheduling_strategy=strategy)
            spec = dataclasses.asdict(self.play)
        else:
            remote = self._remote(RemoteActor, num_cpus=1, scheduling_strategy="SPREAD")
            spec = self.actor_spec(post) | {"sent": self.queues[post.actor].sent, "digest": self._digest}
        post.calls.clear()
        post.handle = remote.remote(json.dumps(spec), self._template)
        post.heartbeat = RayHeartbeat(self.ray, post.handle)
        post.started += 1
        if post.index == QUANTIZER:
            if self._converting is not None:
                self._waiting = self._waiting or self._converting[1:]
                self._converting = None
            self._convert()

    # ---- versions and experience -------------------------------------------------------------------------------------

    def _convert(self) -> None:
        """Hand over the newest numbers if the quantizer is there and has nothing to do."""
        if self.quantizer.handle is not None and self._converting is None and self._waiting is not None:
            numbers, version = self._waiting
            payload = self.quantizer.handle.convert.remote(numbers, self.recent.shape[1:])
            self._converting, self._waiting = (payload, numbers, version), None

    def _fetched(self, post: RemotePost, call: Any) -> Any:
        """The answer to a call; None: it died, or its node with the answer, and was replaced."""
        try:
            answer = self.ray.get(call, timeout=FETCH)
        except self.ray.exceptions.RayTaskError as error:
            raise fault("quantizer" if post.index == QUANTIZER else "actor", error) from None
        except self.ray.exceptions.RayError as error:
            self._replace(post, f"died: {in_a_line(error)}")
            return None
        post.barren = 0
        return answer

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
            chunks = (AHEAD + 1) * self.config.actors * self.layout.nbytes
            versions = (AHEAD + 2 + self.config.actors) * self.template.nbytes
            settings |= {
                "num_cpus": self.config.actors,
                "object_store_memory": max(STORE, 2 * (chunks + versions)),  # all that can be on its way, twice
                "_temp_dir": self._folder.name,
            }
        self._connected = True
        connect(ray, address, settings)

    def _remote(self, cls: type, **options: Any) -> Any:
        """A class as Ray starts it: with one thread, and never again by itself."""
        variables = thread_limits(1)
        if self.config.cluster == "local":  # what the learner can import; other nodes have their own paths
            variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        return self.ray.remote(concurrency_groups={GROUP: 1})(cls).options(
            max_restarts=0, runtime_env={"env_vars": variables}, **options
        )


def fault(what: str, error: Any) -> Exception:
    """What `remote.reported` has sent, as an exception of the learner's."""
    kind, text = error.cause.args if len(error.cause.args) == 2 else ("", error)
    return UserError(f"The {what} failed: {text}") if kind == USERS else RuntimeError(f"the {what} failed:\n{text}")
