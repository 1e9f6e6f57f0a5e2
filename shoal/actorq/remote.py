"""An actor and the quantizer as Ray runs them, on any node: described in JSON, called for one chunk or one version.

What is heavy to import is imported when the first call comes, after the process has been prepared for it.
"""

import hashlib
import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import UserError
from shoal.system.processes import prepare

if TYPE_CHECKING:
    from shoal.actorq.actor import Actor
    from shoal.actorq.versions import Bytes, Version
    from shoal.inference.layers import Array
    from shoal.inference.policy import Policy

USERS, FAULT = "user", "fault"  # kinds of failure: a sentence for the user, or a traceback


class RemoteActor:
    """Plays the loop of `actor.py`, one chunk per call."""

    def __init__(self, spec: str, policy: "Bytes") -> None:
        """Nothing is built yet: a fault is reported by the first call."""
        prepare()
        self._spec, self._policy = json.loads(spec), policy
        self._versions = HandedVersion()
        self._actor: Actor | None = None
        self._idle = 0.0

    def play(self, payload: list[Any], number: int, version: int, exploration: float) -> "Bytes":
        """Play a chunk: the bytes that a queue holds, then what this actor counted since the last call.

        `payload` is Ray's reference to the newest version of the policy, in a list so that Ray does not fetch it before
        it is time to pull; it is publication `number`, made after `version` updates of the learner.
        """
        import numpy as np

        with reported():
            actor = self._actor = self._actor or self._made()
            if self._idle:
                actor.board.seconds["wait"][0] += time.perf_counter() - self._idle
            actor.board.exploration = exploration
            self._versions.newest = payload[0], number, version
            actor.play_chunk()
            message = np.concatenate([actor.queue.unload(), actor.board.take(0)])
        self._idle = time.perf_counter()
        return message

    def alive(self) -> None:
        """A heartbeat."""

    def _made(self) -> "Actor":
        from shoal.actorq.actor import Actor
        from shoal.actorq.board import Board

        if self._spec["digest"] not in (None, source_digest()):  # of a node that joined after the others were asked
            raise UserError("A node has another version of Shoal than the learner's; install the same one on each.")
        actor = Actor(self._spec, self._policy, self._versions, Board(1))
        actor.queue.start_at(self._spec["sent"])
        return actor


class HandedVersion:
    """The version that the present call handed in; Ray fetches it to this node once, and all actors here read it."""

    refused = 0
    newest: tuple[Any, int, int] = None, 0, 0  # Ray's reference to the payload, number and version

    def pull(self, after: int = 0) -> "Version | None":
        """That version if its number is beyond `after`; its payload is read-only, and shared with other actors."""
        import ray

        from shoal.actorq.versions import Version

        payload, number, version = self.newest
        return Version(number, version, ray.get(payload)) if number > after else None


class RemoteQuantizer:
    """Converts the learner's numbers to what is broadcast; its answer stays in the object store of its node."""

    def __init__(self, play: str, policy: "Bytes") -> None:
        prepare()
        self._play, self._template = json.loads(play), policy
        self._policy: Policy | None = None

    def alive(self) -> None:
        """A heartbeat."""

    def convert(self, row: "Array", observations: tuple[int, int]) -> "Bytes":
        """The payload for this row of the policy's numbers, with recent states behind them."""
        from shoal.actorq.player import Play
        from shoal.inference.policy import Policy

        with reported():
            self._policy = self._policy or Policy.from_bytes(self._template.tobytes())
            return Play(**self._play).payload_of(self._policy, row, observations)


@contextmanager
def reported() -> Iterator[None]:
    """Raise any fault as plain text: its class may be one that the learner's node does not know."""
    try:
        yield
    except UserError as error:
        raise RuntimeError(USERS, str(error)) from None
    except Exception:
        raise RuntimeError(FAULT, traceback.format_exc()) from None


def source_digest() -> str:
    """SHA-256 of the package's source: two nodes with the same one run the same code."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()
