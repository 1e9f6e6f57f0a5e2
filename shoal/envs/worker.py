"""A worker, a process of its own: plays its share of the copies of a third-party environment.

Its parent asks by messages, and it answers each. The arrays of a step are in memory that all workers share, where each
reads and writes its own copies; a saved state is sent with a message.
"""

import dataclasses
import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors.numpy import load, save

from shoal.envs.adapters import make_copies
from shoal.envs.base import EnvSpec
from shoal.envs.parallel import ParallelCopies, differs
from shoal.system.child import Channel, Message, serve
from shoal.system.shared_memory import SharedMemory, aligned


def run(spec: Message, parent: Channel) -> None:
    """Do what is asked until the parent is gone."""
    copies = make_copies(**spec["make"])
    if described(copies.spec) != spec["spec"] or copies.form != spec["form"]:
        raise differs(copies.spec.name)
    memory = SharedMemory(spec["memory"]["size"], spec["memory"]["descriptor"])
    first, total = spec["make"]["first"], spec["make"]["total"]
    mine = {
        name: array[first : first + copies.copies] for name, array in step_arrays(memory, copies.spec, total).items()
    }
    worker = Worker(copies, mine)
    parent.send({})
    while (question := parent.receive()) is not None:
        message, data = question
        parent.send(*worker.answer(message["do"], data))


class Worker:
    """Copies of an environment that are played by messages."""

    def __init__(self, copies: ParallelCopies, arrays: dict[str, NDArray]) -> None:
        """Play `copies`; `arrays` is their part of the shared memory."""
        self.copies, self.arrays = copies, arrays

    def answer(self, what: str, data: bytes) -> tuple[dict[str, Any], bytes]:
        """Do what is asked; the answer's message and data."""
        if what == "state":
            return {}, save(self.copies.state())
        if what == "render":
            frame = self.copies.render()
            return {}, b"" if frame is None else save({"frame": np.ascontiguousarray(frame)})
        if what == "close":
            _warnings(self.copies.close)  # the parent has closed such an environment, too, and warned of its faults
            return {}, b""
        said: list[str] = []
        if what == "reset":
            self.arrays["observation"][...] = self.copies.reset()
        elif what == "step":
            step = self.copies.step(self.arrays["actions"])
            for name, array in step._asdict().items():
                if name in self.arrays:
                    self.arrays[name][...] = array
        elif what == "load_state":
            said = _warnings(lambda: self.copies.load_state(load(data)))
        self.arrays["present"][...] = self.copies.present
        self.arrays["episode_step"][...] = self.copies.episode_step
        return {"warnings": said}, b""


def _warnings(call: Callable[[], None]) -> list[str]:
    """What the user should be warned of after a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in caught]


def described(spec: EnvSpec) -> dict[str, Any]:
    """A spec as JSON values."""
    fields = dataclasses.asdict(spec)
    found: dict[str, Any] = json.loads(json.dumps(fields, default=lambda array: array.tolist()))
    return found


def step_arrays(memory: SharedMemory, spec: EnvSpec, copies: int) -> dict[str, NDArray]:
    """The arrays of a step of all copies, by name, in shared memory of `step_bytes`."""
    arrays, offset = {}, 0
    for name, (dtype, shape) in _layout(spec, copies).items():
        arrays[name] = memory.array(dtype, shape, offset)
        offset += aligned(arrays[name].nbytes)
    return arrays


def step_bytes(spec: EnvSpec, copies: int) -> int:
    """Shared memory that the arrays of a step take."""
    layout = _layout(spec, copies).values()
    return sum(aligned(int(np.prod(shape)) * np.dtype(dtype).itemsize) for dtype, shape in layout)


def _layout(spec: EnvSpec, copies: int) -> dict[str, tuple[DTypeLike, tuple[int, ...]]]:
    """Data type and shape of the arrays: actions in; a step, who is present and the step of the episode out."""
    each = (copies, spec.agents)
    return {
        "metrics": (np.float32, (copies, len(spec.metrics))),
        "observation": (np.float32, (*each, spec.observation_size)),
        "reward": (np.float32, each),
        "terminated": (np.bool_, each),
        "truncated": (np.bool_, (copies,)),
        "alive": (np.bool_, each),
        "ended": (np.bool_, (copies,)),
        "final_observation": (np.float32, (*each, spec.observation_size)),
        "actions": (np.float32, (*each, spec.action_size)),
        "present": (np.bool_, each),
        "episode_step": (np.int64, (copies,)),
    }


if __name__ == "__main__":
    serve(run)
