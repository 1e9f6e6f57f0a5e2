"""Copies of a third-party environment in worker processes, each with its own share of them.

The parent asks by messages, and a worker answers each. The arrays of a step are in memory that all workers share, where
each reads and writes its own copies; a saved state is sent with a message. Every copy has the seeds, and every step the
results, that it has in one process (`ParallelCopies`).
Shape letters: E copies, N agents, O observation, A action, T time.
"""

import contextlib
import itertools
import json
import signal
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import load, save

from shoal.envs.adapters import make_copies
from shoal.envs.base import Array, EnvSpec, Step, step_arrays
from shoal.envs.parallel import AdaptedCopies, ParallelCopies, differs
from shoal.errors import UserError, counted
from shoal.system.child import Channel, Child, Ended, Message, serve
from shoal.system.memory import check_fits
from shoal.system.shared_memory import ArrayLayout, SharedMemory

PROCESS_BYTES = 40_000_000  # private memory of a worker with a small environment: Python, numpy and gymnasium
CLOSING = 5.0  # seconds that environments have to close
FEWER = "use fewer `env_workers`"


def shared_layout(spec: EnvSpec, copies: int) -> ArrayLayout:
    """The shared arrays: actions in; a step, the agents that are present and the step of the episode out."""
    agents = (copies, spec.agents)
    return ArrayLayout(
        step_arrays(spec, copies)
        | {
            "actions": (np.float32, (*agents, spec.action_size)),
            "present": (np.bool_, agents),
            "episode_step": (np.int64, (copies,)),
        }
    )


# ---- the parent ------------------------------------------------------------------------------------------------------


class WorkerCopies(AdaptedCopies):
    """A `VectorEnv` whose copies are played by worker processes, each its own share of them."""

    def __init__(
        self, model: ParallelCopies, copies: int, workers: int, seed: int, options: dict[str, Any], **lengths: Any
    ) -> None:
        """Start the workers, and wait until each has built its copies of the environment.

        `model` is a copy in this process, which all others must be like; `lengths` are `episode_length` and `stagger`.
        """
        super().__init__(model.spec, copies, seed)
        _check_options(options)
        check_fits(
            f"Running {counted(workers, 'worker process', 'worker processes')}",
            workers * PROCESS_BYTES,
            lambda usable: f"at most {usable // PROCESS_BYTES} fit (`env_workers`)",
        )
        layout = shared_layout(self.spec, copies)
        memory = SharedMemory(layout.nbytes, remedy="use fewer `copies`")
        self._arrays = layout.views(memory)
        self._episode_step, self.present = self._arrays["episode_step"], self._arrays["present"]
        self._observation = self._arrays["observation"]
        self.awaited = ""
        """The worker that is waited for, in words."""
        bounds = [copies * k // workers for k in range(workers + 1)]
        self._shares = [slice(first, last) for first, last in itertools.pairwise(bounds)]
        self._workers: list[WorkerProcess] = []
        self._kill = weakref.finalize(self, _kill, self._workers)
        """Happens by itself when the copies are no longer used, and at the end of the program."""
        make = {"name": self.spec.name, "seed": seed, "options": options, "total": copies, **lengths}
        common = {"form": model.form, "memory": memory.spec}
        with self._in_step():
            for share in self._shares:
                part = {"first": share.start, "copies": share.stop - share.start}
                self._workers.append(WorkerProcess(self.spec.name, {**common, "make": make | part}, memory.descriptor))
            for worker in self._workers:
                worker.answer()

    def reset(self) -> Array:
        self._ask("reset")
        return self._arrays["observation"].copy()

    def step(self, actions: ArrayLike) -> Step:
        self._arrays["actions"][...] = self.checked_actions(actions)
        self._ask("step")
        return Step(**{name: self._arrays[name].copy() for name in Step._fields})

    def state(self) -> dict[str, NDArray]:
        """The episode number of each copy, and the actions played in it so far, as `ParallelCopies` has them."""
        self.check_begun()
        parts = [load(data) for _, data in self._ask("state")]
        longest = max(part["actions"].shape[1] for part in parts)
        for part in parts:
            missing = longest - part["actions"].shape[1]
            part["actions"] = np.pad(part["actions"], [(0, 0), (0, missing), (0, 0), (0, 0)])  # (E, T, N, A)
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0] if name != "seed"}
        return {"seed": parts[0]["seed"], **joined}

    def load_state(self, state: dict[str, NDArray]) -> None:
        self.check_state(state)
        parts = [
            {name: np.ascontiguousarray(array if name == "seed" else array[share]) for name, array in state.items()}
            for share in self._shares
        ]
        answers = self._ask("load_state", [save(part) for part in parts])
        for sentence in dict.fromkeys(said for message, _ in answers for said in message["warnings"]):
            warnings.warn(sentence, stacklevel=2)

    def render(self) -> NDArray[np.uint8] | None:
        self.check_begun()
        ((_, data),) = self._ask("render", workers=self._workers[:1])
        return load(data)["frame"] if data else None

    def close(self) -> None:
        """Close every copy and end the workers; those that do not end by themselves are killed."""
        if not self._kill.alive:
            return
        deadline = time.monotonic() + CLOSING
        with contextlib.suppress(UserError, RuntimeError):  # one that is gone needs no closing
            for worker in self._workers:
                worker.ask("close")
            for worker in self._workers:
                worker.answer(max(0.0, deadline - time.monotonic()))
        self._kill()

    def _ask(
        self, what: str, data: Sequence[bytes] | None = None, workers: "list[WorkerProcess] | None" = None
    ) -> list[tuple[dict[str, Any], bytes]]:
        """The answers of all workers, or of some; they work side by side."""
        if not self._kill.alive:
            raise UserError(f"{self.spec.name} is closed; make it again.")
        chosen = self._workers if workers is None else workers
        with self._in_step():
            for k, worker in enumerate(chosen):
                worker.ask(what, data[k] if data else b"")
            answers = []
            for k, worker in enumerate(chosen):
                self.awaited = f"worker {k + 1} of {len(self._workers)} (process {worker.process.pid})"
                answers.append(worker.answer())
            self.awaited = ""
            return answers

    @contextlib.contextmanager
    def _in_step(self) -> Iterator[None]:
        """End all workers where the block fails or is interrupted: some have gone on, others have not."""
        try:
            yield
        except BaseException:
            self._kill()
            raise


class WorkerProcess(Child):
    """A worker as its parent sees it."""

    def __init__(self, name: str, spec: Message, memory: int) -> None:
        """Start a worker for copies of the environment called `name`."""
        self._name = name
        super().__init__("shoal.envs.worker", spec, FEWER, descriptors=[memory])

    def ask(self, what: str, data: bytes = b"") -> None:
        """Send a question; nobody waits."""
        try:
            self.channel.send({"do": what}, data)
        except OSError:
            self.answer()

    def answer(self, timeout: float | None = None) -> tuple[Message, bytes]:
        """Wait for the answer to the last question."""
        try:
            return self.receive(timeout)
        except TimeoutError:
            raise UserError(f"A worker process of {self._name} does not answer.") from None
        except Ended as end:
            self.raise_fault()
            remedy = f"; {FEWER}" if end.code == -signal.SIGKILL else ""
            raise UserError(f"A worker process of {self._name} {end}{remedy}.") from None


def _kill(workers: list[WorkerProcess]) -> None:
    for worker in workers:
        worker.kill()


def _check_options(options: dict[str, Any]) -> None:
    """Refuse options that would reach another process changed."""
    try:
        same = json.loads(json.dumps(options)) == options
    except (TypeError, ValueError):
        same = False
    if not same:
        raise UserError("`options` must be JSON values, with lists and no tuples, to be sent to worker processes.")


# ---- the worker ------------------------------------------------------------------------------------------------------


def run(spec: Message, parent: Channel) -> None:
    """Do what is asked until the parent is gone."""
    copies = make_copies(**spec["make"])
    if copies.form != spec["form"]:
        raise differs(copies.spec.name)
    shared = shared_layout(copies.spec, spec["make"]["total"]).views(SharedMemory(**spec["memory"]))
    arrays = {name: array[copies.first : copies.first + copies.copies] for name, array in shared.items()}
    parent.send({})
    while (question := parent.receive()) is not None:
        message, data = question
        parent.send(*answer(copies, arrays, message["do"], data))


def answer(copies: ParallelCopies, arrays: dict[str, NDArray], what: str, data: bytes) -> tuple[Message, bytes]:
    """Do what is asked of these copies, whose part of the shared memory is `arrays`; the answer's message and data."""
    if what == "state":
        return {}, save(copies.state())
    if what == "render":
        frame = copies.render()
        return {}, b"" if frame is None else save({"frame": np.ascontiguousarray(frame)})
    if what == "close":
        _warnings(copies.close)  # the parent has closed such an environment, too, and warned of its faults
        return {}, b""
    warned: list[str] = []
    if what == "reset":
        arrays["observation"][...] = copies.reset()
    elif what == "step":
        for name, array in copies.step(arrays["actions"])._asdict().items():
            arrays[name][...] = array
    elif what == "load_state":
        warned = _warnings(lambda: copies.load_state(load(data)))
    arrays["present"][...] = copies.present
    arrays["episode_step"][...] = copies.episode_step
    return {"warnings": warned}, b""


def _warnings(call: Callable[[], None]) -> list[str]:
    """What the user should be warned of after a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in caught]


if __name__ == "__main__":
    serve(run)
