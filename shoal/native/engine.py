"""A team that learns and acts in native code: memory for its program, threads that run it, its state as plain arrays.

Shape letters: E copies, N agents, M mini-batches, B batch rows, O observation, A action.
"""

import warnings
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.native import work
from shoal.native.maddpg import CHUNK, MADDPG
from shoal.native.networks import Arrays, Networks
from shoal.native.program import Program, Rows, Span, aligned
from shoal.native.tile import host_plan
from shoal.native.work import OFFSET_BITS, Own, Tables
from shoal.replay import Batch, Returns
from shoal.system.threads import lend


class ThreadMemory:
    """What one thread has for itself: its buffers, the addresses of all buffers, and a clock."""

    def __init__(self, program: Program) -> None:
        self.arrays = {number: aligned(size, program.dtype) for number, size in program.private.items()}
        bases = np.zeros(len(program.strides), np.int64)
        for number, array in (program.arrays | self.arrays).items():
            bases[number] = array.ctypes.data
        self.own = Own(bases, np.zeros(work.CLOCKS + len(program.phases), np.int64))
        self.lent = False  # whether a thread works in it, or has been asked to

    def bind(self, places: Mapping[int, int]) -> None:
        """Set the addresses of some buffers."""
        for operand, address in places.items():
            self.own.bases[operand >> OFFSET_BITS] = address


class Rounds:
    """Some pieces of a program that are done again and again."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.number = self.finished = 0  # the last round that has begun, and that is known to be done


class Bound(NamedTuple):
    """A mini-batch's arrays, and their addresses by operand."""

    arrays: tuple[NDArray, ...]
    places: dict[int, int]


class Engine:
    """Learns as an algorithm's program says, and acts with its policies."""

    def __init__(self, algorithm: MADDPG, seed: int, rollout_seed: int, threads: int = 1) -> None:
        """`seed` decides the noise of updates, `rollout_seed` that of exploration."""
        self.algorithm, self.threads = algorithm, threads
        self.program = program = algorithm.program
        first = program.piece_count
        self._record_derived()
        self._acting = {explore: self._record_acting(explore) for explore in (True, False)}
        self._ops, self._strides = program.ops(), np.array(program.strides, np.int64)
        self._slot_arrays = [aligned(program.private[buffer >> OFFSET_BITS], program.dtype) for buffer in program.slots]
        self._slots = np.array([array.ctypes.data for array in self._slot_arrays], np.int64)
        self._memory = [ThreadMemory(program) for _ in range(threads)]
        self.counters = np.array([seed, 0], np.int64)
        self.rollout_counters = np.array([rollout_seed, 0], np.int64)
        self._update = self._rounds(program.pieces(0, first), self.counters)
        self._prepare = self._rounds(program.pieces(first), self.counters)
        self._act_rounds: dict[tuple[int, bool], Rounds] = {}
        self._batch = Bound((), {})
        self._failure: Exception | None = None  # of a thread that helps
        self._told = False

    def _rounds(self, pieces: NDArray[np.int64], counters: NDArray[np.int64]) -> Rounds:
        """Rounds of these pieces."""
        state, claims = np.zeros(len(pieces), np.int64), np.zeros(len(pieces), np.int64)
        counts = np.zeros(self.program.counter_count, np.int64)
        zero = np.zeros(1, self.program.dtype)
        return Rounds(Tables(zero, self._ops, pieces, self._strides, self._slots, state, claims, counts, counters))

    # ---- learning ----------------------------------------------------------------------------------------------------

    def learn(self, batch: Batch | Returns) -> dict[str, NDArray]:
        """Update all agents once; returns each agent's losses (N,)."""
        self._bind(batch)
        self._take_outcomes(batch)
        self.counters[work.MOMENT] += 1
        self._run(self._update)
        losses = self.program.values(self.algorithm.loss)
        n = self.algorithm.spec.agents
        return {name: losses[k * n : (k + 1) * n].copy() for k, name in enumerate(self.algorithm.losses)}

    def shares(self) -> dict[str, float]:
        """How the time of all threads since the last call divides among the phases."""
        spent = np.sum([memory.own.clocks[work.CLOCKS + 1 :] for memory in self._memory], axis=0)
        for memory in self._memory:
            memory.own.clocks[work.CLOCKS :] = 0
        total = max(1, int(spent.sum()))
        return {name: int(own) / total for name, own in zip(self.program.phases[1:], spent, strict=True) if own}

    @property
    def network_bytes(self) -> int:
        """Bytes of what all threads share: networks with Adam's moments and transposed copies, and little else."""
        distinct = {array.ctypes.data: array.nbytes for array in self.program.arrays.values()}
        return sum(distinct.values())

    @property
    def working_bytes(self) -> int:
        """Bytes that updates work in: every thread's memory, and gradients."""
        own = sum(array.nbytes for memory in self._memory for array in memory.arrays.values())
        return own + sum(array.nbytes for array in self._slot_arrays)

    def _bind(self, batch: Batch | Returns) -> None:
        """Point the program to the mini-batch's arrays."""
        algorithm, arrays = self.algorithm, (batch.joint, batch.next_joint, batch.reward)
        operands = (algorithm.joint, algorithm.next_joint, algorithm.reward)
        places = {operand: array.ctypes.data for operand, array in zip(operands, arrays, strict=True)}
        if places == self._batch.places:
            return
        if any(array.dtype != self.program.dtype or not array.flags.c_contiguous for array in arrays):
            raise TypeError(f"the mini-batch must be contiguous {self.program.dtype}")
        if batch.joint.shape != (algorithm.minibatches, algorithm.batch, algorithm.joint_size):
            raise ValueError(f"the mini-batch is {batch.joint.shape}")
        self._batch = Bound(arrays, places)
        self._memory[0].bind(places)

    def _take_outcomes(self, batch: Batch | Returns) -> None:
        """Discounts and weights of the rows, where they are not the same in every mini-batch."""
        algorithm, values = self.algorithm, self.program.values
        n, rows, fixed = algorithm.spec.agents, algorithm.batch, algorithm.spec.fixed_length
        several = isinstance(batch, Returns)
        if fixed and not several:
            return
        bootstrap = np.full((n, rows), algorithm.settings.discount)
        if isinstance(batch, Returns):
            bootstrap = np.broadcast_to(algorithm.settings.discount**batch.steps, (n, rows))  # steps (M, B)
        if not fixed:
            bootstrap = bootstrap * ~own_columns(batch.terminated)
            there = own_columns(batch.alive).astype(self.program.dtype)
            weight = there / np.maximum(there.sum(-1, keepdims=True), 1)
            values(algorithm.weight)[: n * rows] = weight.reshape(-1)
            stays = batch.next_alive if isinstance(batch, Returns) else batch.alive & ~batch.terminated
            for operand, flags in ((algorithm.alive, batch.alive), (algorithm.next_alive, stays)):
                values(operand)[:] = flags.reshape(-1, n).T.reshape(-1)
        values(algorithm.bootstrap)[: n * rows] = bootstrap.reshape(-1)

    def _run(self, rounds: Rounds, alone: bool = False) -> None:
        """Do all pieces once; other threads help, and are not waited for."""
        own = self._memory[0].own
        if rounds.finished < rounds.number:  # an exception came between the two lines below
            work.work(rounds.tables, own, rounds.number, CHUNK, False)
        rounds.number += 1
        if not alone:
            for memory in self._memory[1:]:
                if not memory.lent:
                    memory.lent = True
                    self._lend(rounds, memory)
        work.work(rounds.tables, own, rounds.number, CHUNK, False)
        rounds.finished = rounds.number
        if self._failure is not None and not self._told:
            self._told = True
            reason = str(self._failure) or type(self._failure).__name__
            warnings.warn(
                f"A thread that helps with updates failed ({reason}): training continues with fewer threads, "
                "to the same results.",
                stacklevel=1,
            )

    def _lend(self, rounds: Rounds, memory: ThreadMemory) -> None:
        """Ask another thread to help."""
        try:
            lend(self._help, rounds, memory)
        except RuntimeError as error:  # it cannot be started
            self._failure = error

    def _help(self, rounds: Rounds, memory: ThreadMemory) -> None:
        """Work in another thread, and come again if a new round has begun by the time it is through.

        A thread that is late still reads what it began with, so it keeps a mini-batch's arrays until then. It takes
        them after the round's number: if they are a newer round's already, this round is over. One that fails is not
        asked again: its memory stays lent.
        """
        try:
            number = rounds.number
            batch = self._batch
            memory.bind(batch.places)
            work.work(rounds.tables, memory.own, number, CHUNK, True)
        except Exception as error:
            self._failure = error
            return
        if rounds.number > number:
            self._lend(rounds, memory)
        else:
            memory.lent = False

    def _record_derived(self) -> None:
        """Pieces that make anew what is derived from weights, for weights that were loaded."""
        algorithm, program = self.algorithm, self.program
        done = program.counter()
        for networks in (algorithm.actors, algorithm.critics):
            for number in range(networks.count):
                with program.span() as span:
                    networks[number].transpose()
                    if networks is algorithm.critics:
                        algorithm.transpose_own(networks[number], number // algorithm.heads)
                program.piece(span, tells=[done], alone=True)
        for i in range(algorithm.spec.agents):
            with program.span() as span:
                algorithm.exponentiate(i)
            program.piece(span, tells=[done], alone=True)

    # ---- acting ------------------------------------------------------------------------------------------------------

    def _record_acting(self, explore: bool) -> list[Span]:
        """Operations of each agent's policy on the rows of all copies."""
        algorithm, program, spec = self.algorithm, self.program, self.algorithm.spec
        if explore:
            self._seen = program.buffer(spec.agents * spec.observation_size)
            self._chosen = program.buffer(spec.agents * spec.action_size)
        spans = []
        for i in range(spec.agents):
            with program.span() as span:
                span.every_chunk()
                at, width = self._seen + i * spec.observation_size, spec.observation_size
                head = algorithm.rollout_actors[i].forward(Rows(at, spec.agents * width, width))[-1]
                action = program.scratch(spec.action_size)
                (algorithm.explore if explore else algorithm.greedy)(action, head, i)
                to = Rows(self._chosen + i * spec.action_size, spec.agents * spec.action_size, spec.action_size)
                program.copy(to, action)
            spans.append(span)
        return spans

    def act(self, observation: NDArray, explore: bool = True) -> NDArray:
        """Actions (E, N, A) for observations (E, N, O): noisy as in training, or the most likely ones."""
        spec, dtype = self.algorithm.spec, self.program.dtype
        seen = np.ascontiguousarray(observation, dtype)
        if seen.ndim != 3 or seen.shape[1:] != (
            spec.agents,
            spec.observation_size,
        ):  # native code reads what it expects
            raise ValueError(f"observations have shape {seen.shape}, not (E, {spec.agents}, {spec.observation_size})")
        actions = np.empty((len(seen), spec.agents, spec.action_size), dtype)
        key = (len(seen), explore)
        if key not in self._act_rounds:
            first, done = self.program.piece_count, self.program.counter()
            for span in self._acting[explore]:
                self.program.piece(span, tells=[done], rows=(0, len(seen)), alone=True)
            self._act_rounds[key] = self._rounds(self.program.pieces(first), self.rollout_counters)
        bases = self._memory[0].own.bases
        bases[self._seen >> OFFSET_BITS], bases[self._chosen >> OFFSET_BITS] = seen.ctypes.data, actions.ctypes.data
        self.rollout_counters[work.MOMENT] += explore
        self._run(self._act_rounds[key], alone=True)
        return actions

    # ---- state -------------------------------------------------------------------------------------------------------

    def read(self, networks: str, number: int, of: str = "weights") -> Arrays:
        """Weights of one network, or Adam's `mean` or `square` of them."""
        stack = self.algorithm.networks[networks]
        return stack.shape.read(stack.numbers(number, _part(stack, of)))

    def write(self, networks: str, number: int, arrays: Arrays, of: str = "weights") -> None:
        """Take over what `read` returned; after the last one call `prepare`."""
        stack = self.algorithm.networks[networks]
        stack.shape.write(stack.numbers(number, _part(stack, of)), arrays)

    def prepare(self) -> None:
        """Make what is derived from the weights."""
        self._run(self._prepare, alone=True)


def compile_native() -> None:
    """Compile what updates and acting run, or load it from the cache."""
    program = Program(np.float32, 1, 1)
    tables = Tables(
        np.zeros(1, np.float32), program.ops(), program.pieces(), *(np.zeros(1, np.int64) for _ in range(6))
    )
    work.work(tables, ThreadMemory(program).own, 1, 1, False)


@cache
def why_unusable() -> str | None:
    """Why native code cannot run on this machine; None if it can, and then it is compiled."""
    if host_plan() is None:
        return "this processor has no vector instructions that native code knows"
    try:
        compile_native()
    except Exception as error:  # numba and LLVM have many
        return f"numba cannot compile it here ({(str(error).splitlines() or [type(error).__name__])[0][:100]})"
    return None


def _part(stack: Networks, of: str) -> int:
    return {"weights": stack.at, "mean": stack.mean, "square": stack.square}[of] if stack.learned else stack.at


def own_columns(columns: NDArray) -> NDArray:
    """(N, B) of (M, B, N): agent i's own column, in the shared mini-batch or in its own."""
    return columns[0].T if len(columns) == 1 else np.diagonal(columns, axis1=0, axis2=2).T
