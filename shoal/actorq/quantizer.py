"""The quantizer, a process of its own: takes the learner's newest numbers and broadcasts them in few bits."""

import time

from shoal.actorq.board import Board
from shoal.actorq.child import live
from shoal.actorq.player import Play, payload_of
from shoal.actorq.versions import Versions
from shoal.inference.policy import Policy
from shoal.system.child import Channel, Message, serve
from shoal.system.shared_memory import SharedMemory

PAUSE = 0.0005
"""Seconds between looks for a new version."""


def run(spec: Message, parent: Channel) -> None:
    """Broadcast until the learner says stop."""
    board = Board(SharedMemory(spec["board"]["size"], spec["board"]["descriptor"]), spec["children"])
    numbers = SharedMemory(spec["numbers"]["size"], spec["numbers"]["descriptor"])
    payloads = SharedMemory(spec["payloads"]["size"], spec["payloads"]["descriptor"])
    template = SharedMemory(spec["policy"]["size"], spec["policy"]["descriptor"])
    policy = Policy.from_bytes(template.array("u1", (spec["policy_bytes"],)).tobytes())
    play = Play(**spec["play"])
    source, target = Versions(numbers, spec["numbers_bytes"]), Versions(payloads, spec["payload_bytes"])
    live(board, spec["index"], parent)
    broadcast(board, spec["index"], policy, play, source, target, tuple(spec["seen"]))


def broadcast(
    board: Board,
    index: int,
    policy: Policy,
    play: Play,
    source: Versions,
    target: Versions,
    seen: tuple[int, int],
) -> None:
    """Turn every newest version of the learner's into a payload; versions that come too fast are passed over."""
    taken = 0
    while not board.stopping:
        found = source.pull(taken)
        if found is None:
            time.sleep(PAUSE)
            continue
        taken = found.number
        start = time.perf_counter()
        target.publish(payload_of(play, policy, found.payload.view("f4"), seen), found.version)
        board.spend(index, "act", time.perf_counter() - start)
        board.add(index, "steps")
        board.set(index, "number", found.number)


if __name__ == "__main__":
    serve(run)
