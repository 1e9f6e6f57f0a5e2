"""What an actor plays with: a policy in some engine, with the exploration of training, and new versions as they come.

Shape letters: E copies, N agents, O observation, A action.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.actorq.broadcast import from_payload, numbers_of, states_in, to_payload, with_numbers
from shoal.actorq.versions import Bytes
from shoal.envs.base import EnvSpec
from shoal.inference.correction import corrected
from shoal.inference.engine import Engine, make_engine
from shoal.inference.explore import Explorer
from shoal.inference.grid import safe_bits
from shoal.inference.layers import Array
from shoal.inference.policy import Policy

if TYPE_CHECKING:
    from shoal.actorq.torch_player import TorchPlayer


@dataclass(frozen=True)
class Play:
    """How all actors play."""

    engine: str
    precision: str
    bits: int  # of the numbers that are broadcast
    copies: int
    states: int = 0  # recent states on which the biases of every version are corrected; 0: they are not

    @property
    def codes(self) -> bool:
        """Whether versions travel as the engine itself keeps its weights."""
        return self.precision == "int8"

    def make_engine(self, network: Policy) -> Engine:
        """The engine of an actor."""
        return make_engine(network, self.engine, self.precision, batch=self.copies)  # type: ignore[arg-type]

    def payload(self, policy: Policy, numbers: Array, states: Array | None = None) -> Bytes:
        """What is broadcast for these numbers of a policy, its biases corrected on the states (B, N, O), if any."""
        if not self.codes and (states is None or not len(states)):
            return to_payload(policy, numbers, self.bits)
        network = with_numbers(policy, numbers).network()
        if states is not None and len(states):
            bits = safe_bits() if self.codes else self.bits
            network = corrected(network, states, bits, by_rows=self.codes)
        if self.codes:
            from shoal.inference.native_engine import pack_codes

            return pack_codes(network)
        return to_payload(policy, numbers_of(network), self.bits)

    def payload_of(self, policy: Policy, row: Array, sizes: tuple[int, int]) -> Bytes:
        """The same for a row of numbers, with recent states of `sizes` (N, O) behind them if biases are corrected."""
        count = policy.parameters
        states = states_in(row[count + count % 2 :], sizes) if self.states else None
        return self.payload(policy, row[:count], states)


class EnginePlayer:
    """Plays with the newest version that it was given, without torch."""

    def __init__(self, policy: Policy, play: Play, seed: int) -> None:
        self.policy, self.play = policy, play
        self.explorer = Explorer(policy, play.make_engine, seed)
        self.to_world = self.explorer.to_world
        """Actions as the world takes them."""

    def act(self, observation: Array, deviation: float) -> Array:
        """Noisy actions (E, N, A) as the replay ring keeps them, for observations (E, N, O).

        `deviation`: of the noise, where the policy does not have its own; of Q values the probability of any choice.
        """
        self.explorer.deviation = deviation
        return self.explorer.explore(observation)

    def load(self, payload: Bytes) -> float:
        """Play another version from now on; returns the seconds that turning its bytes into numbers took."""
        if self.play.codes:
            self.explorer.engine.load_codes(payload)  # type: ignore[attr-defined]
            return 0.0
        start = time.perf_counter()
        numbers = from_payload(self.policy, payload, self.play.bits)
        passed = time.perf_counter() - start
        self.explorer.load(with_numbers(self.policy, numbers))
        return passed


def make_player(policy: Policy, play: Play, spec: EnvSpec, seed: int) -> "EnginePlayer | TorchPlayer":
    """The player for an engine; torch is imported only for its own."""
    if play.engine == "torch":
        from shoal.actorq.torch_player import TorchPlayer

        return TorchPlayer(policy, play, spec, seed)
    return EnginePlayer(policy, play, seed)
