"""Exported policies on disk: validated when read, run by ONNX Runtime.

A checksum at the end of the file detects a flipped bit in a weight; it detects damage, not tampering. ONNX files are
protocol buffers, to which fields can be appended: this seal is one more entry of the model's metadata, `shoal_sha256`,
and other programs read the file as before.
"""

import hashlib
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np

from shoal.envs.base import EnvSpec
from shoal.errors import UserError, counted
from shoal.inference.form import ACTION, Ports
from shoal.inference.layers import Array
from shoal.inference.policy import FORMAT, Actions, Draws
from shoal.inference.runtime import new_session, reason, session_options
from shoal.system.memory import human_bytes

MOST_BYTES = 2**31 - 1  # what an ONNX file can hold
NEEDED = {
    "agents": list, "observation_sizes": list, "action_sizes": list, "discrete": bool, "head": str, "precision": str,
}  # fmt: skip
_KEY = b"shoal_sha256"
_DIGITS = 64
_BEFORE = bytes((0x72, len(_KEY) + _DIGITS + 4, 0x0A, len(_KEY))) + _KEY + bytes((0x12, _DIGITS))
"""Field 14, metadata_props, with a key and a value of these lengths."""


class PolicyFile:
    """A policy that `shoal export` wrote."""

    name = "onnx"

    def __init__(
        self, path: Path, threads: int = 1, seed: int = 0, trusted: bool = False, content: bytes | None = None
    ) -> None:
        """Read and validate the file; a `UserError` if it is not an exported policy.

        `trusted`: this program wrote the file itself, so the checks are skipped, which saves memory.
        `content`: the same for a file that is not yet written.
        """
        model = _read(Path(path)) if content is None else content
        if not intact(model):
            raise UserError(f"'{path}' is not as `shoal export` wrote it (wrong checksum); export the policy again.")
        if not trusted and content is None:
            from shoal.inference.untrusted import check_graph, parsed

            proto = parsed(path, model)
            _facts(path, {prop.key: prop.value for prop in proto.metadata_props})  # before its contents
            check_graph(path, proto, len(model))
        try:
            self.session = new_session(model, session_options(threads))
            props = self.session.get_modelmeta().custom_metadata_map
        except Exception as error:  # ONNX Runtime raises a dozen exception types of its own
            raise UserError(f"'{path}' is not an ONNX file or is damaged ({reason(error)}).") from None
        self.path, self.nbytes = path, len(model)
        self.facts = _facts(path, props)
        self.precision = str(self.facts["precision"])
        self.agents = len(self.facts["agents"])
        self.observation_size, self.action_size = max(self.facts["observation_sizes"]), max(self.facts["action_sizes"])
        self.discrete = bool(self.facts["discrete"])
        self.ports = Ports(
            self.agents, self.observation_size, self.action_size, self.discrete, self.facts["head"] == "categorical",
            tuple(self.facts.get("image") or ()),
        )  # fmt: skip
        self.draws = self.ports.draws
        self._single = self.facts.get("batch") == 1
        self.noise = Draws(seed)
        self._check_graph()

    def _check_graph(self) -> None:
        """Raise a `UserError` unless the graph's inputs and outputs match the file's metadata."""
        kind = "tensor(int64)" if self.discrete else "tensor(float)"
        expected = {(name, "tensor(float)", shape) for name, shape in self.ports.inputs.items()}
        expected.add((ACTION, kind, self.ports.output))
        values = [*self.session.get_inputs(), *self.session.get_outputs()]
        try:
            ports = {(value.name, value.type, tuple(value.shape[1:])) for value in values}
        except UnicodeDecodeError:  # names that are not valid text
            ports = set()
        if ports != expected:
            raise UserError(f"'{self.path}' is damaged: its inputs and outputs do not match its metadata.")

    def act(self, observation: Array, noise: Array | None = None) -> Actions:
        """Choices (B, N), or boxes (B, N, A), for raw observations (B, N, O)."""
        if self._single and len(observation) > 1:
            rows = [slice(b, b + 1) for b in range(len(observation))]
            return np.concatenate([self.act(observation[row], None if noise is None else noise[row]) for row in rows])
        if self.draws and noise is None:
            noise = self.noise.uniform((len(observation), self.agents, self.action_size))
        try:
            output = self.session.run([ACTION], self.ports.feed(observation, noise))[0]
        except Exception as error:  # ONNX Runtime raises a dozen exception types of its own
            raise UserError(f"'{self.path}' cannot be run: {reason(error)}.") from None
        action = self.ports.actions(np.asarray(output))
        if self.discrete and ((action < 0).any() or (action >= np.array(self.facts["action_sizes"])).any()):
            raise UserError(f"'{self.path}' is damaged: it returns a choice that its metadata does not allow.")
        return action

    def play(self, observation: Array, sample: bool = True) -> Array:
        """Actions (E, N, A) as `env.step` takes them, for observations (E, N, O).

        `sample`: sample the choices, if the file can; else take the most likely ones.
        """
        if self.facts.get("one_hot"):  # worlds return discrete observations one-hot
            observation = observation.argmax(-1).astype(np.float32)[..., None]
        noise = None
        if self.draws and not sample:  # equal noise for every choice keeps the most likely one first
            noise = np.full((len(observation), self.agents, self.action_size), 0.5, np.float32)
        actions = self.act(observation, noise)
        if not self.discrete:
            return np.asarray(actions, np.float32)
        return (np.arange(self.action_size) == actions[..., None]).astype(np.float32)

    def check_fits(self, spec: EnvSpec) -> None:
        """Raise a `UserError` unless the policy fits this world."""
        if spec.agents != self.agents:
            names = ", ".join(map(str, self.facts["agents"][:4]))
            raise UserError(
                f"'{self.path}' is a policy for {counted(self.agents, 'agent')} ({names}), but {spec.name} has "
                f"{spec.agents}."
            )
        seen = [self.facts["one_hot"]] * self.agents if self.facts.get("one_hot") else self.facts["observation_sizes"]
        for what, sizes, expected in (
            ("observations", seen, spec.observation_sizes),
            ("actions", self.facts["action_sizes"], spec.action_sizes),
        ):
            if tuple(sizes) != tuple(expected):
                ours, theirs = (", ".join(map(str, dict.fromkeys(each))) for each in (sizes, expected))
                numbers = "number" if ours == "1" else "numbers"
                raise UserError(
                    f"'{self.path}' is a policy for {what} of {ours} {numbers}, but those of {spec.name} have {theirs}."
                )
        if spec.discrete != self.discrete:
            ours, theirs = ("choices", "boxes") if self.discrete else ("boxes", "choices")
            raise UserError(f"'{self.path}' is a policy for {ours}, but the actions of {spec.name} are {theirs}.")


def _read(path: Path) -> bytes:
    """The bytes of a file, if it is not larger than an ONNX file can be."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"'{path}' is not a regular file.")
            if status.st_size > MOST_BYTES:
                raise UserError(f"'{path}' has {human_bytes(status.st_size)}, but an ONNX file has at most 2 GiB.")
            return file.read()
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None


def _facts(path: Path, props: dict[str, str]) -> dict[str, Any]:
    """The metadata, validated."""
    if "shoal" not in props:
        raise UserError(f"'{path}' is an ONNX model, but not a policy that `shoal export` wrote.")
    try:
        facts = json.loads(props["shoal"])
        whole = _whole(facts)
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise UserError(f"'{path}' is damaged: its metadata cannot be read.")
    if facts.get("format") != FORMAT:
        raise UserError(f"'{path}' has format {facts.get('format')}, but this version of Shoal reads format {FORMAT}.")
    return dict(facts)


def _whole(facts: Any) -> bool:
    """Whether all required fields are there and have the right types."""
    if not isinstance(facts, dict) or not all(isinstance(facts.get(name), kind) for name, kind in NEEDED.items()):
        return False
    seen, acted = facts["observation_sizes"], facts["action_sizes"]
    image, one_hot = facts.get("image") or [], facts.get("one_hot") or 1
    if not isinstance(image, list) or not len(facts["agents"]) == len(seen) == len(acted) > 0:
        return False
    numbers = all(type(number) is int and number > 0 for number in (*seen, *acted, *image, one_hot))
    return numbers and (not image or (len(image) == 3 and math.prod(image) == seen[0]))


def sealed(model: bytes) -> bytes:
    """The file with its checksum appended."""
    return model + _BEFORE + _digest(model)


def intact(content: bytes) -> bool:
    """Whether a file matches its seal; a file without a seal is accepted."""
    place = len(content) - len(_BEFORE) - _DIGITS
    if content[place:-_DIGITS] != _BEFORE:
        return _KEY not in content  # something was appended to it
    return content[-_DIGITS:] == _digest(content[:place])


def _digest(model: bytes) -> bytes:
    return hashlib.sha256(model).hexdigest().encode()
