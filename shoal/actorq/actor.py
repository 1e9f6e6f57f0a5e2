"""An actor, a process of its own: plays its copies of the world with the newest version and sends its experience."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.actorq.board import Board
from shoal.actorq.chunks import Chunk, ChunkLayout, ChunkQueue
from shoal.actorq.heartbeat import live
from shoal.actorq.player import Play, make_player
from shoal.actorq.versions import Bytes, Versions
from shoal.inference.policy import Policy
from shoal.system.child import Channel, Message, serve
from shoal.system.shared_memory import SharedMemory
from shoal.training.config import TrainConfig
from shoal.training.evaluation import build_env

if TYPE_CHECKING:
    from shoal.actorq.remote import HandedVersion

PAUSE = 0.0002  # seconds between two checks while waiting


class Stop(Exception):
    """The run has ended."""


def run(spec: Message, parent: Channel) -> None:
    """Play until the run ends."""
    if spec["processor"] is not None:
        os.sched_setaffinity(0, {spec["processor"]})
    board = Board(spec["children"], SharedMemory(**spec["board"]))
    policy = SharedMemory(**spec["policy"]).array("u1", (spec["policy_bytes"],))
    versions = Versions(spec["payload_bytes"], SharedMemory(**spec["payloads"]))
    actor = Actor(spec, policy, versions, board, spec["index"], spec["slots"], SharedMemory(**spec["chunks"]))
    live(board, spec["index"], parent)  # only now: importing torch may block the interpreter for seconds
    try:
        actor.play()
    except Stop:
        actor.env.close()


class Actor:
    """Plays, pulls versions and sends chunks."""

    def __init__(
        self,
        spec: Message,
        policy: Bytes,
        versions: "Versions | HandedVersion",
        board: Board,
        index: int = 0,
        slots: int = 1,
        memory: SharedMemory | None = None,
    ) -> None:
        """`index`: its place on the board; `memory`: that of its queue, if it is shared with the learner."""
        config = TrainConfig(**spec["config"])
        self.env = env = build_env(config, config.copies, spec["world_seed"], config.stagger)
        play = Play(**spec["play"])
        self.player = make_player(Policy.from_bytes(policy.tobytes()), play, env.spec, spec["noise_seed"])
        self.queue = ChunkQueue(ChunkLayout(env.spec, config.copies, spec["chunk_steps"]), slots, memory)
        self.versions, self.board, self.index = versions, board, index
        self.deviation: float | None = spec["deviation"]
        """Of this actor's noise; None: as the learner has it on the board."""
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
        """Play one chunk and send it, once a slot of the queue is free."""
        begins = self._observation is None
        observation = self.env.reset() if begins else self._observation
        self._wait_for(lambda: self.queue.waiting < self.queue.slots)
        chunk = self.queue.free()
        assert chunk is not None
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
        counts, seconds = self.board.counts, self.board.seconds
        counts["refused"][self.index] += self.versions.refused - refused
        self._next_pull = self.steps + self.pull_every
        if newest is None:
            return
        deserialize = self.player.load(newest.payload)
        if self.number:  # waiting for the very first version is not part of a pull
            counts["pulls"][self.index] += 1
            counts["bytes"][self.index] += newest.payload.nbytes
            seconds["pull"][self.index] += pulled - start
            seconds["load"][self.index] += time.perf_counter() - pulled
            seconds["deserialize"][self.index] += deserialize
        self.number, self.version = newest.number, newest.version
        counts["number"][self.index] = newest.number

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
        self.board.counts["steps"][self.index] += 1
        self.board.seconds["act"][self.index] += acted - start
        self.board.seconds["environment"][self.index] += stepped - acted
        return step.observation

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        start = time.perf_counter()
        while not ready():
            self._pause()
            now = time.perf_counter()
            self.board.seconds["wait"][self.index] += now - start  # at once: a wait may outlast the run
            start = now

    def _pause(self) -> None:
        if self.board.stopping:
            raise Stop
        time.sleep(PAUSE)


if __name__ == "__main__":
    serve(run)
