"""How a team learns: the papers' settings are the defaults, everything can be changed."""

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from os import PathLike, fspath
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from shoal.errors import UserError, check_choice, check_range


@dataclass(frozen=True)
class LearnConfig:
    """Settings of the algorithms, the mini-batches and the replay ring."""

    algorithm: Literal["maddpg", "masac"] = "maddpg"
    """Learning algorithm; with one agent MADDPG is DDPG and MASAC is SAC."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer, actors and critics alike."""
    learning_rate: float = 0.01
    """Adam's step size."""
    discount: float = 0.95
    """Gamma: what the next step is worth today."""
    tau: float = 0.01
    """Share of the way that target networks move towards the online ones in an update."""
    batch: int = 1024
    """Rows of a mini-batch."""
    minibatch: Literal["shared", "independent"] = "shared"
    """One mini-batch for all agents, or one for each as in the papers' baseline."""
    sampler: Literal["uniform", "neighbor", "neighbor-v1", "neighbor-v2"] = "uniform"
    """How transitions are drawn: singly, or as the neighbours in time of a drawn one
    (v1, v2: as the papers' two texts have it; reference implementation only)."""
    neighbors: int = 3
    """Neighbour sampling: transitions taken on either side of the drawn one."""
    include_center: bool = False
    """Neighbour sampling: take the drawn transition as well."""
    capacity: int = 1_000_000
    """Transitions the replay ring holds, all copies together."""
    storage: Literal["float32", "float16", "bfloat16"] = "float32"
    """How observations lie in the ring; 16 bits halve its size."""
    warmup: int = 25_600
    """Samples before the first update; the updates owed until then are made up at once."""
    update_every: int = 100
    """Samples (steps of a copy) for each update of all agents."""
    clip: float = 0.5
    """Largest gradient norm; 0 turns clipping off."""
    clip_by: Literal["variable", "network"] = "variable"
    """Clip each weight array of each agent by itself, or each agent's network as a whole."""
    gumbel: Literal["auto", "soft", "straight-through"] = "auto"
    """Samples of choices: soft vectors or one-hot with the straight-through gradient;
    auto: soft where the world takes them as forces, else one-hot."""
    others: Literal["ring", "current"] = "ring"
    """Other agents' actions in an actor's loss: as they were played, or drawn from the current policies."""
    first_layer: Literal["reuse", "dense"] = "reuse"
    """In the actors' loss: compute the critics' first layer once and correct it, or whole for each agent."""
    logit_penalty: float = 1e-3
    """MADDPG: weight of the mean square of the logits in the actors' loss."""
    exploration_noise: float = 0.1
    """MADDPG with box actions: standard deviation of the rollout noise, in half-widths of the box."""
    entropy: float = 0.05
    """MASAC: the temperature, weight of the policies' entropy (the first value, if learned)."""
    learn_entropy: bool = False
    """MASAC: learn each agent's temperature so that its entropy meets the target."""
    target_entropy: float | None = None
    """MASAC with a learned temperature: entropy to hold, in nats; None: half of the largest (choices), -A (boxes)."""
    variant: Literal["online", "tf2"] = "online"
    """MASAC: online policies for next actions, both critics in the actors' loss, entropy of each row;
    or as the public TF2 code: target policies for next actions and rollouts, first critic, batch-mean entropy."""

    def check(self) -> None:
        """Raise a `UserError` for the first setting that cannot be."""
        if not self.hidden or any(width < 1 for width in self.hidden):
            raise UserError(f"--hidden is {self.hidden}, but needs at least one layer of at least one unit.")
        check_range("--learning-rate", self.learning_rate, 0, 10)
        check_range("--discount", self.discount, 0, 1)
        check_range("--tau", self.tau, 0, 1)
        check_range("--batch", self.batch, 1, 2**24)
        check_range("--neighbors", self.neighbors, 1, 2**20)
        check_range("--capacity", self.capacity, 1, 2**40)
        check_range("--warmup", self.warmup, 1, 2**40)
        check_range("--update-every", self.update_every, 1, 2**40)
        check_range("--clip", self.clip, 0)
        check_range("--logit-penalty", self.logit_penalty, 0)
        check_range("--exploration-noise", self.exploration_noise, 0)
        check_range("--entropy", self.entropy, 0)


Config = TypeVar("Config")


def as_declared(config: Config) -> Config:
    """The same settings in their fields' own types: configurations also come from Python and from JSON.

    numpy's numbers, lists and paths are taken for what they mean; anything else is refused with a sentence.
    """
    hints = get_type_hints(type(config))
    return replace(config, **{name: _declared(option(name), getattr(config, name), hints[name]) for name in hints})  # type: ignore[type-var]


def _declared(what: str, value: Any, hint: Any) -> Any:
    """A setting in the type that its field declares."""
    import numpy as np  # here, because the command line is there before numpy and its threads

    kinds = get_args(hint) or (hint,)
    if value is None and NoneType in kinds:
        return None
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple | np.ndarray):
            raise UserError(f"{what} is {value!r}, but must be a list of whole numbers.")
        return tuple(_declared(what, element, kinds[0]) for element in value)
    if get_origin(hint) is Literal:
        check_choice(what, str(value), kinds)
        return str(value)
    if bool in kinds:
        if not isinstance(value, bool | np.bool_):
            raise UserError(f"{what} is {value!r}, but must be true or false.")
        return bool(value)
    if str in kinds:
        if not isinstance(value, str | PathLike):
            raise UserError(f"{what} is {value!r}, but must be a text.")
        return fspath(value)
    if float in kinds:
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise UserError(f"{what} is {value!r}, but must be a finite number.")
        return float(value)
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{what} is {value!r}, but must be a whole number.")
    return int(value)


def option(name: str) -> str:
    """The command-line spelling of a field: `update_every` is --update-every."""
    return "--" + name.replace("_", "-")
