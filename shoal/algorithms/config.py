"""Settings of learning; the papers' are the defaults."""

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from os import PathLike, fspath
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from shoal.errors import UserError, check_choice, check_range


@dataclass(frozen=True)
class LearnConfig:
    """Settings of the algorithm, the mini-batches and the replay ring."""

    algorithm: Literal["maddpg", "masac"] = "maddpg"
    """Learning algorithm; with one agent MADDPG is DDPG and MASAC is SAC."""
    hidden: tuple[int, ...] = (64, 64)
    """Units per hidden layer, of actors and critics."""
    learning_rate: float = 0.01
    """Learning rate of Adam."""
    discount: float = 0.95
    """Discount factor (gamma)."""
    tau: float = 0.01
    """Soft-update coefficient (tau) of the target networks."""
    batch: int = 1024
    """Mini-batch size."""
    minibatch: Literal["shared", "independent"] = "shared"
    """One mini-batch for all agents, or one per agent as in the papers' baseline."""
    sampler: Literal["uniform", "neighbor", "neighbor-v1", "neighbor-v2"] = "uniform"
    """How mini-batches are sampled: uniformly, or as temporal neighbours of sampled transitions
    (v1, v2: the papers' two versions; reference implementation only)."""
    neighbors: int = 3
    """Neighbour sampling: transitions on either side of the sampled one."""
    include_center: bool = False
    """Neighbour sampling: include the sampled transition itself."""
    capacity: int = 1_000_000
    """Replay capacity in transitions, all copies together."""
    storage: Literal["float32", "float16", "bfloat16"] = "float32"
    """Data type of observations in the replay ring; 16 bits halve its size."""
    warmup: int = 25_600
    """Samples before the first update; the updates due by then are done at once."""
    update_every: int = 100
    """Samples (steps of one copy) per update of all agents."""
    clip: float = 0.5
    """Maximum gradient norm; 0: no clipping."""
    clip_by: Literal["variable", "network"] = "variable"
    """Clip the gradient norm per agent and weight array, or per agent and network."""
    gumbel: Literal["auto", "soft", "straight-through"] = "auto"
    """Gumbel-softmax samples of discrete actions: soft vectors, or one-hot with the straight-through gradient;
    auto: soft where the world takes them as forces, else straight-through."""
    others: Literal["ring", "current"] = "ring"
    """Other agents' actions in the actor loss: from the replay ring, or sampled from the current policies."""
    first_layer: Literal["reuse", "dense"] = "reuse"
    """Critics' first layer in the actor loss: computed once and corrected per agent, or in full per agent."""
    logit_penalty: float = 1e-3
    """MADDPG: weight of the mean squared logits in the actor loss."""
    exploration_noise: float = 0.1
    """MADDPG with box actions: standard deviation of the exploration noise, in half-widths of the box."""
    entropy: float = 0.05
    """MASAC: entropy coefficient (temperature, alpha); its initial value if learned."""
    learn_entropy: bool = False
    """MASAC: learn one entropy coefficient per agent so that its entropy meets the target."""
    target_entropy: float | None = None
    """MASAC with a learned entropy coefficient: target entropy in nats; None: half of the maximum (discrete actions),
    minus the number of dimensions (boxes)."""
    variant: Literal["online", "tf2"] = "online"
    """MASAC: online policies for next actions, both critics in the actor loss, entropy per row;
    or as the public TF2 code: target policies for next actions and rollouts, first critic, batch-mean entropy."""

    def check(self) -> None:
        """Raise a `UserError` for the first invalid setting."""
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
    """The same settings in the types that their fields declare: configurations also come from Python and from JSON.

    numpy numbers, lists and paths are converted; anything else is refused.
    """
    hints = get_type_hints(type(config))
    return replace(config, **{name: _declared(option(name), getattr(config, name), hints[name]) for name in hints})  # type: ignore[type-var]


def _declared(what: str, value: Any, hint: Any) -> Any:
    """A setting in the type that its field declares."""
    import numpy as np  # here, because the command line is parsed before numpy starts its threads

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
            raise UserError(f"{what} is {value!r}, but must be a string.")
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
