"""Runs a program: its memory, and the threads that work in it."""

import warnings
from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from shoal.native.machine import CLOCKS
from shoal.native.operations import OFFSET_BITS
from shoal.native.program import Program, aligned
from shoal.native.tile import host_plan
from shoal.native.work import Own, Tables, compiled_work
from shoal.system.threads import lend


class ThreadMemory:
    """What one thread has for itself: its buffers, the addresses of all buffers, and a clock."""

    def __init__(self, program: Program) -> None:
        self.arrays = {number: aligned(size, program.dtype) for number, size in program.private.items()}
        bases = np.zeros(len(program.strides), np.int64)
        for number, array in (program.arrays | self.arrays).items():
            bases[number] = array.ctypes.data
        self.own = Own(bases, np.zeros(CLOCKS + len(program.phases), np.int64))
        self.lent = False  # whether a thread works in it, or has been asked to

    def bind(self, arrays: Mapping[int, NDArray]) -> None:
        """Let buffers be these arrays."""
        for operand, array in arrays.items():
            self.own.bases[operand >> OFFSET_BITS] = array.ctypes.data


class Rounds:
    """Some pieces of a program that are done again and again."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.number = self.finished = 0  # the last round that has begun, and that is known to be done


class Runner:
    """A recorded program with its memory, run by one thread or several, with the same bits.

    All operations are recorded by the time it is made; pieces may be added later.
    """

    def __init__(self, program: Program, threads: int = 1) -> None:
        self.program, self.threads = program, threads
        self.work = compiled_work(program.operations)
        self._ops, self._strides = program.ops(), np.array(program.strides, np.int64)
        self._slot_arrays = [aligned(program.private[buffer >> OFFSET_BITS], program.dtype) for buffer in program.slots]
        self._slots = np.array([array.ctypes.data for array in self._slot_arrays], np.int64)
        self._memory = [ThreadMemory(program) for _ in range(threads)]
        self._bound: Mapping[int, NDArray] = {}  # arrays from outside that the program works on
        self._failure: Exception | None = None  # of a thread that helps
        self._warned = False

    def rounds(self, first: int = 0, last: int | None = None, counters: NDArray[np.int64] | None = None) -> Rounds:
        """Rounds of the pieces first to last; `counters` are the seed of their noise, and the number of the round."""
        pieces = self.program.pieces(first, last)
        state, claims = np.zeros(len(pieces), np.int64), np.zeros(len(pieces), np.int64)
        counts = np.zeros(len(self.program.counted), np.int64)
        zero, counters = np.zeros(1, self.program.dtype), np.zeros(2, np.int64) if counters is None else counters
        return Rounds(Tables(zero, self._ops, pieces, self._strides, self._slots, state, claims, counts, counters))

    def bind(self, arrays: Mapping[int, NDArray], alone: bool = False) -> None:
        """Let buffers be these arrays, for all threads that run rounds from now on, or for the calling one `alone`."""
        arbitrary = not alone and any(
            array.dtype != self.program.dtype or not array.flags.c_contiguous for array in arrays.values()
        )
        if arbitrary:
            raise TypeError(f"arrays must be contiguous {self.program.dtype}")
        self._memory[0].bind(arrays)
        if not alone:
            self._bound = arrays

    def run(self, rounds: Rounds, alone: bool = False) -> None:
        """Do all pieces once, unless `alone` with the help of other threads, which are not waited for."""
        own = self._memory[0].own
        if rounds.finished < rounds.number:  # an exception came between the two lines below
            self.work(rounds.tables, own, rounds.number, self.program.chunk, False)
        rounds.number += 1
        if not alone:
            for memory in self._memory[1:]:
                if not memory.lent:
                    memory.lent = True
                    self._lend(rounds, memory)
        self.work(rounds.tables, own, rounds.number, self.program.chunk, False)
        rounds.finished = rounds.number
        if self._failure is not None and not self._warned:
            self._warned = True
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

        A thread that is late still reads what it began with, so it keeps bound arrays until then. It takes them after
        the round's number: if they are a newer round's already, this round is over. One that fails is not asked again:
        its memory stays lent.
        """
        try:
            number = rounds.number
            bound = self._bound  # kept until the end
            memory.bind(bound)
            self.work(rounds.tables, memory.own, number, self.program.chunk, True)
        except Exception as error:
            self._failure = error
            return
        if rounds.number > number:
            self._lend(rounds, memory)
        else:
            memory.lent = False

    def shares(self) -> dict[str, float]:
        """How the time of all threads since the last call divides among the phases."""
        spent = np.sum([memory.own.clocks[CLOCKS + 1 :] for memory in self._memory], axis=0)
        for memory in self._memory:
            memory.own.clocks[CLOCKS:] = 0
        total = max(1, int(spent.sum()))
        phases = zip(self.program.phases[1:], spent, strict=True)
        return {name: int(nanoseconds) / total for name, nanoseconds in phases if nanoseconds}

    @property
    def network_bytes(self) -> int:
        """Bytes of what all threads share: networks with Adam's moments and transposed copies, and little else."""
        return sum({array.ctypes.data: array.nbytes for array in self.program.arrays.values()}.values())

    @property
    def working_bytes(self) -> int:
        """Bytes that updates work in: every thread's memory, and gradients."""
        private = sum(array.nbytes for memory in self._memory for array in memory.arrays.values())
        return private + sum(array.nbytes for array in self._slot_arrays)


@cache
def why_unusable() -> str | None:
    """Why native code cannot run on this machine; None if it can, and then it is compiled or loaded from the cache."""
    if host_plan() is None:
        return "this processor has no vector instructions that native code knows"
    try:
        runner = Runner(Program(np.float32, 1, 1))
        runner.run(runner.rounds())
    except Exception as error:  # numba and LLVM have many
        return f"numba cannot compile it here ({(str(error).splitlines() or [type(error).__name__])[0][:100]})"
    return None
