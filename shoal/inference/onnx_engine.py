"""ONNX Runtime as an engine: float32, float16 (storage of the weights only) and int8.

float32 for single states: the weights are inputs of the graph, so loading others is a copy. In all other cases ONNX
Runtime prepacks the weights when a session is created, so loading others creates a new session from the same template.
int8 has two graphs, one for single states and one for batches; both give the same actions.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from shoal.errors import UserError, check_choice
from shoal.inference.engine import besides_weights, check_noise, check_observation, fitting
from shoal.inference.form import ACTION, OBSERVATION, Arrays, Form, Ports, named_arrays, weight_arrays
from shoal.inference.graph import build
from shoal.inference.grid import safe_bits
from shoal.inference.layers import Array
from shoal.inference.native_engine import unpack_codes
from shoal.inference.options import ExportPrecision
from shoal.inference.policy import Actions, Draws, Policy
from shoal.inference.runtime import new_session, onnxruntime, session_options


class Binding:
    """Inputs and outputs of a session in preallocated arrays: a call copies the observation in and runs."""

    def __init__(self, session: onnxruntime.InferenceSession, policy: Policy, batch: int) -> None:
        ports = Ports.of(policy)
        self.observation = np.zeros((batch, policy.agents, policy.observation_size), np.float32)
        self.noise = np.full((batch, policy.agents, policy.action_size), 0.5, np.float32)
        kind = np.int64 if ports.discrete else np.float32
        self.actions: NDArray[Any] = np.zeros((batch, *ports.action_shape), kind)
        self.bound = session.io_binding()
        self._session = session
        for name, shape in ports.inputs.items():
            self.give(name, self.observation if name == OBSERVATION else self.noise, (batch, *shape))
        self.bound.bind_output(ACTION, "cpu", 0, kind, (batch, *ports.output), self.actions.ctypes.data)

    def give(self, name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
        """Bind an input of the graph, which may be weights."""
        self.bound.bind_input(name, "cpu", 0, array.dtype.type, shape, array.ctypes.data)

    def run(self) -> None:
        self._session.run_with_iobinding(self.bound)


class Side:
    """One graph of a policy: its template without weights, its session, and its bindings by batch size."""

    def __init__(self, policy: Policy, form: Form, threads: int) -> None:
        self.form, self.threads, self.policy = form, threads, policy
        self.bindings: dict[int, Binding] = {}
        self.given: Arrays = {}
        arrays = weight_arrays(policy, form)
        if form.given:
            self.given = {name: np.array(array, order="C") for name, array in arrays.items()}
            self.session = new_session(build(policy, form).SerializeToString(), session_options(threads))
        else:
            self.template, self.names = template(policy, form)
            self.renew(arrays)

    def load(self, policy: Policy) -> None:
        arrays = weight_arrays(policy, self.form)
        for name, array in self.given.items():
            array[...] = arrays[name]
        if not self.given:
            self.renew(arrays)

    def renew(self, arrays: Arrays) -> None:
        """Create a session of the template with these weights."""
        options = session_options(self.threads)
        self._weights = [np.ascontiguousarray(arrays[name]) for name in self.names]  # the session may refer to them
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in self._weights]
        options.add_external_initializers(self.names, values)
        self.session = new_session(self.template, options)
        self.bindings.clear()

    def binding(self, batch: int) -> Binding:
        if batch not in self.bindings:
            binding = self.bindings[batch] = Binding(self.session, self.policy, batch)
            for name, array in self.given.items():
                binding.give(name, array, array.shape)
        return self.bindings[batch]


def template(policy: Policy, form: Form) -> tuple[bytes, list[str]]:
    """The model without its weights, and their names: the session gets them from memory."""
    model = build(policy, form)
    names = []
    for tensor in model.graph.initializer:
        if tensor.name.startswith("layer"):
            names.append(tensor.name)
            place = {"location": "memory", "offset": "0", "length": str(len(tensor.raw_data))}
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in place.items():
                tensor.external_data.add(key=key, value=value)
    return bytes(model.SerializeToString()), names


class OnnxEngine:
    """A policy in ONNX Runtime."""

    name = "onnx"

    def __init__(self, policy: Policy, precision: str = "float32", threads: int = 1, batch: int = 1) -> None:
        """`batch` is the batch size to prepare for; others are prepared on first use."""
        check_choice("The precision", precision, ("float32", "float16", "int8"))
        self.policy, self.precision, self.threads = policy.played(), precision, threads
        self._given = precision == "float32" and batch == 1
        self._draws = Draws()
        self._sides: dict[bool, Side] = {}
        self._codes: list[Arrays] | None = None
        self._binding(batch)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights in the graph, scales included."""
        return sum(array.nbytes for array in weight_arrays(self.policy, self._form(alone=True)).values())

    def act(self, observation: Array, noise: Array | None = None) -> Actions:
        batch = len(observation)
        check_observation(self.policy, observation)
        binding = self._binding(batch)
        binding.observation[...] = observation
        if self.policy.head.kind == "categorical":
            if noise is None:
                noise = self._draws.uniform(binding.noise.shape)
            check_noise(self.policy, noise, batch)
            binding.noise[...] = noise
        binding.run()
        return binding.actions

    def load(self, policy: Policy) -> None:
        """Load other weights into every graph; with another normaliser or action bounds the graphs are rebuilt."""
        policy = fitting(self.policy, policy)
        if besides_weights(self.policy) == besides_weights(policy):
            for side in self._sides.values():
                side.load(policy)
        else:
            self._sides.clear()
        self.policy, self._codes = policy, None

    def load_codes(self, buffer: Any) -> None:
        """Play packed codes of a policy of the same shapes, normaliser and box: int8 only, with new sessions."""
        if self.precision != "int8":
            raise UserError(f"The engine has the precision {self.precision}, but packed codes are for int8.")
        self._codes = unpack_codes(buffer, self.policy, safe_bits())
        for side in self._sides.values():
            side.renew(named_arrays(self.policy, side.form, self._codes))

    def _binding(self, batch: int) -> Binding:
        alone = self.precision == "int8" and batch == 1
        side = self._sides.get(alone)
        if side is None:
            side = self._sides[alone] = Side(self.policy, self._form(alone), self.threads)
            if self._codes is not None:
                side.renew(named_arrays(self.policy, side.form, self._codes))
        return side.binding(batch)

    def _form(self, alone: bool) -> Form:
        precision: ExportPrecision = self.precision  # type: ignore[assignment]
        return Form(precision, safe_bits(), alone=alone, given=self._given)
