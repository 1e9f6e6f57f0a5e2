"""The quantizer, a process of its own: takes the learner's newest numbers and broadcasts them in low precision."""

import time

from shoal.actorq.board import Board
from shoal.actorq.heartbeat import live
from shoal.actorq.player import Play
from shoal.actorq.versions import Versions
from shoal.inference.policy import Policy
from shoal.system.child import Channel, Message, serve
from shoal.system.shared_memory import SharedMemory

PAUSE = 0.0005  # seconds between looks for a new version


def run(spec: Message, parent: Channel) -> None:
    """Turn every newest version of the learner's into a payload until the run ends; older ones are skipped."""
    board, index = Board(spec["children"], SharedMemory(**spec["board"])), spec["index"]
    source = Versions(spec["numbers_bytes"], SharedMemory(**spec["numbers"]))
    target = Versions(spec["payload_bytes"], SharedMemory(**spec["payloads"]))
    policy = Policy.from_bytes(SharedMemory(**spec["policy"]).array("u1", (spec["policy_bytes"],)).tobytes())
    play = Play(**spec["play"])
    live(board, index, parent)
    taken = 0
    while not board.stopping:
        version = source.pull(taken)
        if version is None:
            time.sleep(PAUSE)
            continue
        taken = version.number
        start = time.perf_counter()
        payload = play.payload_of(policy, version.payload.view("f4"), tuple(spec["observations"]))
        target.publish(payload, version.version)
        board.seconds["act"][index] += time.perf_counter() - start
        board.counts["steps"][index] += 1
        board.counts["number"][index] = version.number


if __name__ == "__main__":
    serve(run)
