"""An actor, a process of its own: plays its copies of the world with the newest version and sends its experience."""

import os
import time
from collections.abc import Callable
from typing import Any

from shoal.actorq.board import Board
from shoal.actorq.chunks import Chunk, ChunkLayout, ChunkQueue
from shoal.actorq.heartbeat import live
from shoal.actorq.player import Play, Player, make_player
from shoal.actorq.versions import Bytes, Versions, VersionSource
from shoal.envs.base import VectorEnv
from shoal.inference.policy import Policy
from shoal.system.child import Channel, Message, serve
from shoal.system.shared_memory import SharedMemory
from shoal.training.config import TrainConfig
from shoal.training.evaluation import build_env

PAUSE = 0.0002
"""Seconds between two checks while waiting."""


class Stop(Exception):
    """The run has ended."""


def run(spec: Message, parent: Channel) -> None:
    """Play until the run ends."""
    if spec["processor"] is not None:
        os.sched_setaffinity(0, {spec["processor"]})
    board = Board(spec["children"], SharedMemory(**spec["board"]))
    policy = SharedMemory(**spec["policy"]).array("u1", (spec["policy_bytes"],))
    versions = Versions(spec["payload_bytes"], SharedMemory(**spec["payloads"]))
    actor = make_actor(spec, policy, versions, board, spec["index"], spec["slots"], SharedMemory(**spec["chunks"]))
    live(board, spec["index"], parent)  # only now: importing torch may block the interpreter for seconds
    try:
        actor.play()
    except Stop:
        actor.env.close()


def make_actor(
    spec: Message,
    policy: Bytes,
    versions: VersionSource,
    board: Board,
    index: int = 0,
    slots: int = 1,
    memory: SharedMemory | None = None,
) -> "Actor":
    """The actor of this specification; `memory` is that of its queue, if it is shared with the learner."""
    config = TrainConfig(**spec["config"])
    env = build_env(config, config.copies, spec["world_seed"], config.stagger)
    player = make_player(Policy.from_bytes(policy.tobytes()), Play(**spec["play"]), env.spec, spec["noise_seed"])
    queue = ChunkQueue(ChunkLayout(env.spec, config.copies, spec["chunk_steps"]), slots, memory)
    return Actor(config, env, player, queue, versions, board, index, spec["deviation"])


class Actor:
    """Plays, pulls versions and sends chunks."""

    def __init__(
        self,
        config: TrainConfig,
        env: VectorEnv,
        player: Player,
        queue: ChunkQueue,
        versions: VersionSource,
        board: Board,
        index: int,
        deviation: float | None,
    ) -> None:
        """`index`: on the board; `deviation`: of this actor's noise, or None: as the learner has it on the board."""
        self.env, self.player, self.queue, self.versions, self.board = env, player, queue, versions, board
        self.index, self.deviation = index, deviation
        self.pull_every, self.lockstep = config.pull_every, config.lockstep
        self.steps = self.number = self.version = 0
        self._next_pull = 0
        self._observation: Any = None

    def play(self) -> None:
        """Send one chunk after another until the run ends."""
        while True:
            if self.lockstep:
                self._wait_for(lambda: self.board.round > self.queue.sent)
            self.play_chunk()

    def play_chunk(self) -> None:
        """Play one chunk and send it."""
        begins = self._observation is None
        observation = self.env.reset() if begins else self._observation
        chunk = self._free_chunk()
        chunk.first[...] = observation
        chunk.fresh[...] = self.env.episode_step == 0
        steps = len(chunk.actions)
        for t in range(steps):
            if self.steps >= self._next_pull:
                self.pull()
            observation = self._step(t, chunk, observation)
        self.queue.send(steps, begins)
        self._observation = observation

    def pull(self) -> None:
        """Take the newest version; the very first one is waited for."""
        start, refused = time.perf_counter(), self.versions.refused
        newest = self.versions.pull(self.number)
        while newest is None and self.number == 0:
            self._pause()
            newest = self.versions.pull(self.number)
        pulled = time.perf_counter()
        self.board.add(self.index, "refused", self.versions.refused - refused)
        self._next_pull = self.steps + self.pull_every
        if newest is None:
            return
        deserialize = self.player.load(newest.payload)
        if self.number:  # waiting for the very first version is not part of a pull
            self.board.add(self.index, "pulls")
            self.board.add(self.index, "bytes", newest.payload.nbytes)
            self.board.spend(self.index, "pull", pulled - start)
            self.board.spend(self.index, "load", time.perf_counter() - pulled)
            self.board.spend(self.index, "deserialize", deserialize)
        self.number, self.version = newest.number, newest.version
        self.board.set(self.index, "number", newest.number)

    def _step(self, t: int, chunk: Chunk, observation: Any) -> Any:
        """One step of all copies, into place t of the chunk."""
        if self.board.stopping:
            raise Stop
        start = time.perf_counter()
        actions = self.player.act(observation, self.board.exploration if self.deviation is None else self.deviation)
        acted = time.perf_counter()
        step = self.env.step(self.player.to_world(actions))
        if not self.env.spec.fixed_length:
            actions = actions * step.alive[..., None]  # departed agents act zeros
        stepped = time.perf_counter()
        chunk.put(t, actions, step, self.version)
        self.steps += 1
        self.board.add(self.index, "steps")
        self.board.spend(self.index, "act", acted - start)
        self.board.spend(self.index, "environment", stepped - acted)
        return step.observation

    def _free_chunk(self) -> Chunk:
        """A slot of the queue, waited for where the learner is behind."""
        self._wait_for(lambda: self.queue.waiting < self.queue.slots)
        chunk = self.queue.free()
        assert chunk is not None
        return chunk

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        start = time.perf_counter()
        while not ready():
            self._pause()
            now = time.perf_counter()
            self.board.spend(self.index, "wait", now - start)  # at once: a wait may outlast the run
            start = now

    def _pause(self) -> None:
        if self.board.stopping:
            raise Stop
        time.sleep(PAUSE)


if __name__ == "__main__":
    serve(run)
