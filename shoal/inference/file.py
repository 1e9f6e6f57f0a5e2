"""Exported policies on disk: written whole, read with suspicion, played by ONNX Runtime alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.envs.base import EnvSpec
from shoal.errors import UserError
from shoal.inference.engine import Draws
from shoal.inference.policy import Actions, Array
from shoal.inference.runtime import new_session

FORMAT = 1
NEEDED = {
    "agents": list,
    "observation_sizes": list,
    "action_sizes": list,
    "discrete": bool,
    "head": str,
    "precision": str,
}


class PolicyFile:
    """A policy that `shoal export` wrote."""

    name = "onnx"

    def __init__(self, path: Path, threads: int = 1, seed: int = 0) -> None:
        """Read it; a `UserError` for whatever is not such a file."""
        try:
            model = Path(path).read_bytes()
        except OSError as error:
            raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
        try:
            self.session = new_session(model, threads)
        except Exception as error:  # ONNX Runtime has a dozen kinds of its own
            raise UserError(f"'{path}' is not an ONNX file or is damaged ({_reason(error)}).") from None
        self.path, self.nbytes = path, len(model)
        self.facts = _facts(path, self.session.get_modelmeta().custom_metadata_map)
        self.precision = str(self.facts["precision"])
        self.agents = len(self.facts["agents"])
        self.observation_size, self.action_size = max(self.facts["observation_sizes"]), max(self.facts["action_sizes"])
        self.discrete = bool(self.facts["discrete"])
        self._single = self.facts.get("batch") == 1
        self._draws = Draws(seed)
        expected = {"observation", "noise"} if self.facts["head"] == "categorical" else {"observation"}
        found = {value.name for value in self.session.get_inputs()}
        if found != expected or [value.name for value in self.session.get_outputs()] != ["action"]:
            raise UserError(f"'{path}' says that it is a policy, but its inputs are {', '.join(sorted(found))}.")

    def act(self, observation: Array, noise: Array | None = None) -> Actions:
        """Choices (B, N), or boxes (B, N, A), for raw observations (B, N, O)."""
        if self._single and len(observation) > 1:
            noises = [None] * len(observation) if noise is None else [noise[b : b + 1] for b in range(len(noise))]
            rows = [self.act(observation[b : b + 1], noises[b]) for b in range(len(observation))]
            return np.concatenate(rows)
        batch, one = len(observation), self.agents == 1
        shape = tuple(self.facts.get("image") or (observation.shape[2],))
        lead = (batch,) if one else (batch, self.agents)
        feed: dict[str, NDArray[Any]] = {"observation": np.asarray(observation, np.float32).reshape(*lead, *shape)}
        if self.facts["head"] == "categorical":
            if noise is None:
                noise = self._draws.uniform((batch, self.agents, self.action_size))
            feed["noise"] = np.asarray(noise, np.float32).reshape(*lead, self.action_size)
        action = np.asarray(self.session.run(["action"], feed)[0])
        return action.reshape((batch, self.agents) if self.discrete else (batch, self.agents, self.action_size))

    def play(self, observation: Array) -> Array:
        """Actions (E, N, A) as Shoal's worlds take them, for their observations (E, N, O)."""
        if self.facts.get("one_hot"):  # the worlds hand whole numbers out one-hot
            observation = observation.argmax(-1).astype(np.float32)[..., None]
        actions = self.act(observation)
        if not self.discrete:
            return np.asarray(actions, np.float32)
        return (np.arange(self.action_size) == actions[..., None]).astype(np.float32)

    def check_fits(self, spec: EnvSpec) -> None:
        """Raise a `UserError` unless this is a policy for such a world."""
        if spec.agents != self.agents:
            names = ", ".join(map(str, self.facts["agents"][:4]))
            raise UserError(
                f"'{self.path}' is a policy for {self.agents} agents ({names}), but {spec.name} has {spec.agents}."
            )
        seen = [self.facts["one_hot"]] * self.agents if self.facts.get("one_hot") else self.facts["observation_sizes"]
        for what, own, theirs in (
            ("observations", seen, spec.observation_sizes),
            ("actions", self.facts["action_sizes"], spec.action_sizes),
        ):
            if tuple(own) != tuple(theirs):
                raise UserError(
                    f"'{self.path}' is a policy for {what} of {_sizes(own)} numbers, but those of {spec.name} have "
                    f"{_sizes(theirs)}."
                )
        if spec.discrete != self.discrete:
            kinds = ("boxes", "choices")
            raise UserError(
                f"'{self.path}' is a policy for {kinds[self.discrete]}, but the actions of {spec.name} are "
                f"{kinds[spec.discrete]}."
            )


def _facts(path: Path, props: dict[str, str]) -> dict[str, Any]:
    """The metadata, found to be whole."""
    if "shoal" not in props:
        raise UserError(f"'{path}' is an ONNX model, but not a policy of Shoal's: `shoal export` writes those.")
    try:
        facts = json.loads(props["shoal"])
        whole = isinstance(facts, dict) and all(isinstance(facts.get(name), kind) for name, kind in NEEDED.items())
        whole = whole and len({len(facts[name]) for name in ("agents", "observation_sizes", "action_sizes")}) == 1
        whole = whole and len(facts["agents"]) > 0
        whole = whole and all(type(n) is int and n > 0 for n in facts["observation_sizes"] + facts["action_sizes"])
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise UserError(f"'{path}' is damaged: what it says about itself cannot be read.")
    if facts.get("format") != FORMAT:
        raise UserError(f"'{path}' has format {facts.get('format')}, but this version of Shoal reads format {FORMAT}.")
    return dict(facts)


def _sizes(sizes: Any) -> str:
    return ", ".join(str(size) for size in dict.fromkeys(sizes))


def _reason(error: Exception) -> str:
    """The runtime's complaint without its codes."""
    text = str(error).splitlines()[0].split(" : ")[-1].strip() or type(error).__name__
    return text[:160].rstrip(".: ")
