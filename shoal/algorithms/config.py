"""Settings of learning; the papers' are the defaults."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real
from os import PathLike, fspath
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypeVar, get_args, get_origin, get_type_hints

from shoal.errors import UserError, check_choice, check_range, setting, whole_number
from shoal.trust import class_name, registered

T = TypeVar("T")
if TYPE_CHECKING:
    Own = Annotated[T, "None: the algorithm's own"]
else:
    Own = Optional[T]  # noqa: UP045
OWN: Any = None
"""The default of a setting that differs by algorithm: a new configuration puts the algorithm's own value in its place,
so that readers of the setting find a value."""

PAPER: dict[str, Any] = {
    "hidden": (64, 64), "learning_rate": 0.01, "discount": 0.95, "tau": 0.01, "target_period": 1, "batch": 1024,
    "warmup": 25_600, "update_every": 100, "clip": 0.5, "clip_by": "variable", "n_step": 1, "share": "none",
    "critic": "joint",
}  # fmt: skip
"""Of "Towards Efficient Multi-Agent Learning Systems"."""
ACTORQ: dict[str, Any] = {
    "hidden": (256, 256), "learning_rate": 1e-4, "discount": 0.99, "tau": 1.0, "target_period": 100, "batch": 256,
    "warmup": 2_000, "update_every": 16, "clip": 40.0, "clip_by": "network", "n_step": 5, "share": "none",
    "critic": "joint",
}  # fmt: skip
"""Of the code of QuaRL's ActorQ, but for the layers: its policies have three of 2048 units."""
OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "maddpg": PAPER,
    "masac": PAPER,
    "d4pg": {**ACTORQ, "atoms": 51, "v_min": -150.0, "v_max": 150.0},
    "dqn": {**ACTORQ, "epsilon": 0.05, "epsilon_decay": 0},
}
"""What each algorithm has in place of None; a setting that it does not list does not apply to it."""
OWN_NAMES = {name for own in OWN_SETTINGS.values() for name in own}
ALWAYS = set.intersection(*map(set, OWN_SETTINGS.values())) - {"update_every"}
"""Settings that are None in no complete configuration, whatever its algorithm."""
SAMPLERS = ("uniform", "neighbor", "neighbor-v1", "neighbor-v2")


RANGES: dict[str, tuple[float, float | None]] = {
    "learning_rate": (0, 10), "discount": (0, 1), "tau": (0, 1), "target_period": (1, 2**40), "batch": (1, 2**24),
    "n_step": (1, 2**20), "neighbors": (1, 2**20), "capacity": (1, 2**40), "warmup": (1, 2**40),
    "update_every": (1, 2**40), "clip": (0, None), "logit_penalty": (0, None), "exploration_noise": (0, None),
    "entropy": (0, None), "atoms": (2, 2**16), "v_min": (-1e30, 1e30), "v_max": (-1e30, 1e30), "epsilon": (0, 1),
    "epsilon_decay": (0, 2**40),
}  # fmt: skip
"""Smallest and largest value of a setting; None stands for no upper end."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """The algorithm and its coefficients."""

    algorithm: str = "maddpg"
    """Learning algorithm: maddpg, masac, d4pg, dqn, or MODULE:CLASS for your own (docs/extending.md). With one agent
    MADDPG is DDPG and MASAC is SAC. DQN is for discrete actions only. Settings that default to None have the
    algorithm's own value, or do not apply to it."""
    algorithm_options: str = ""
    """With MODULE:CLASS as the algorithm: additional constructor arguments as a JSON object."""
    learning_rate: Own[float] = OWN
    """Learning rate of Adam; also --lr."""
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning-rate schedule over the run's episodes: constant, or annealed to 0 linearly or with a half cosine."""
    discount: Own[float] = OWN
    """Discount factor; also --gamma."""
    tau: Own[float] = OWN
    """Soft-update coefficient (tau) of the target networks; 1: hard updates."""
    target_period: Own[int] = OWN
    """Updates between two updates of the target networks. If only this is given, tau is 1; if only --tau is given,
    this is 1."""
    n_step: Own[int] = OWN
    """Steps of the n-step return."""
    clip: Own[float] = OWN
    """Maximum gradient norm; 0: no clipping."""
    clip_by: Own[Literal["variable", "network"]] = OWN
    """Clip the gradient norm per agent and weight array, or per agent and network."""
    gumbel: Literal["auto", "soft", "straight-through"] = "auto"
    """Gumbel-softmax samples of discrete actions: soft vectors, or one-hot with the straight-through gradient;
    auto: soft where the world takes them as forces, else straight-through."""
    others: Literal["ring", "current"] = "ring"
    """Other agents' actions in the actor loss: from the replay ring, or sampled from the current policies."""
    logit_penalty: float = 1e-3
    """MADDPG, D4PG: weight of the mean squared logits in the actor loss."""
    exploration_noise: float = 0.1
    """MADDPG, D4PG with box actions: standard deviation of the exploration noise, in half-widths of the box."""
    atoms: Own[int] = OWN
    """D4PG: number of atoms of the critics' return distribution."""
    v_min: Own[float] = OWN
    """D4PG: smallest return of the distribution, the first atom."""
    v_max: Own[float] = OWN
    """D4PG: largest return of the distribution, the last atom."""
    double: bool = True
    """DQN: double Q-learning: next actions are chosen by the online networks and valued by the target networks."""
    epsilon: Own[float] = OWN
    """DQN: probability of a random action in rollouts."""
    epsilon_decay: Own[int] = OWN
    """DQN: samples over which that probability decreases linearly from 1 to --epsilon; 0: fixed."""
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


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of the networks."""

    hidden: Own[tuple[int, ...]] = OWN
    """Units per hidden layer, of actors and critics."""
    critic_hidden: tuple[int, ...] | None = None
    """Units per hidden layer of the critics; None: as --hidden."""
    share: Own[Literal["none", "actors", "critics", "all"]] = OWN
    """Networks that agents of one kind share (same group, observations and actions): none as in the papers, their
    actors, their critics, or all. Shared critics tell agents apart by a bias that each agent learns."""
    critic: Own[Literal["joint", "pooled"]] = OWN
    """Critics see all observations and actions side by side (joint), or an agent's own embedding and the mean of all
    agents' embeddings (pooled): fewer weights, and what is learned of one agent holds for all others of its kind."""
    layer_norm: bool = False
    """Layer normalisation and tanh after the critics' first layer, in place of a ReLU."""
    first_layer: Literal["reuse", "dense"] = "reuse"
    """Critics' first layer in the actor loss: computed once and corrected per agent, or in full per agent."""


@dataclass(frozen=True)
class ReplayConfig:
    """The replay ring, mini-batches and the frequency of updates."""

    batch: Own[int] = OWN
    """Mini-batch size; also --batch-size."""
    minibatch: Literal["shared", "independent"] = "shared"
    """One mini-batch for all agents, or one per agent as in the papers' baseline."""
    sampler: str = "uniform"
    """How mini-batches are sampled: uniform, neighbor (temporal neighbours of sampled transitions; neighbor-v1,
    neighbor-v2: the papers' two versions, reference implementation only), or MODULE:CLASS for your own."""
    sampler_options: str = ""
    """With MODULE:CLASS as the sampler: constructor arguments as a JSON object."""
    neighbors: int = 3
    """Neighbour sampling: transitions on either side of the sampled one."""
    include_center: bool = False
    """Neighbour sampling: include the sampled transition itself."""
    capacity: int = 1_000_000
    """Replay capacity in transitions, all copies together."""
    storage: Literal["float32", "float16", "bfloat16"] = "float32"
    """Data type of observations in the replay ring; 16 bits halve its size."""
    normalize_observations: bool = False
    """Normalise each entry of the observations by its running mean and variance, clipped at ±10; agents of one kind
    share statistics."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return, clipped at ±10."""
    warmup: Own[int] = OWN
    """Samples before the first update; the updates due by then are done at once."""
    update_every: Own[int] = OWN
    """Samples (steps of one copy) per update of all agents; none where actors keep --samples-per-insert."""


@dataclass(frozen=True)
class LearnConfig(ReplayConfig, NetworkConfig, AlgorithmConfig):
    """Settings of the algorithm, the networks, the mini-batches and the replay ring."""

    def __post_init__(self) -> None:
        """Put the algorithm's own settings in place of None, and names in place of classes."""
        object.__setattr__(self, "algorithm", class_name("algorithm", self.algorithm, OWN_SETTINGS))
        object.__setattr__(self, "sampler", class_name("sampler", self.sampler, SAMPLERS))
        given = {name for name, value in vars(self).items() if value is not None}
        if ":" in self.algorithm and given >= ALWAYS:
            return  # complete, perhaps from a file: its code is not imported here
        own = dict(own_settings(self.algorithm))
        if "tau" in given:
            own["target_period"] = 1
        elif "target_period" in given:
            own["tau"] = 1.0
        for name in own.keys() - given:
            object.__setattr__(self, name, own[name])

    @property
    def shared_actors(self) -> bool:
        """Whether agents of one kind have one actor."""
        return self.share in ("actors", "all")

    @property
    def shared_critics(self) -> bool:
        """Whether agents of one kind have the same critics."""
        return self.share in ("critics", "all")

    @property
    def critic_layers(self) -> tuple[int, ...]:
        """Units of each hidden layer of the critics."""
        return self.hidden if self.critic_hidden is None else self.critic_hidden

    def learning_rate_factor(self, done: float) -> float:
        """The schedule's factor of the learning rate when this share of the run is done."""
        left = max(0.0, 1.0 - done)
        factors = {"constant": 1.0, "linear": left, "cosine": math.sin(left * math.pi / 2) ** 2}
        return factors[self.learning_rate_schedule]

    def check(self) -> None:
        """Raise a `UserError` for the first invalid setting."""
        for name, known in (("algorithm", OWN_SETTINGS), ("sampler", SAMPLERS)):
            chosen, options = getattr(self, name), f"{name}_options"
            if ":" not in chosen:
                if chosen not in known:
                    check_choice(name, chosen, [*known, *registered(name), "MODULE:CLASS"])
                if getattr(self, options):
                    raise UserError(f"`{options}` is for your own {name} (MODULE:CLASS), but `{name}` is {chosen}.")
            json_object(options, getattr(self, options))
        if ":" not in self.algorithm:
            self.check_as(self.algorithm, OWN_SETTINGS[self.algorithm])
        for name, layers in (("hidden", self.hidden), ("critic_hidden", self.critic_layers)):
            if not layers or any(width < 1 for width in layers):
                given = " ".join(map(str, layers)) or "empty"
                raise UserError(f"`{name}` is {given}, but needs at least one layer of at least one unit.")
        for name, ends in RANGES.items():
            if (value := getattr(self, name)) is not None:
                check_range(name, value, *ends)

    def check_as(self, algorithm: str, own: Mapping[str, Any]) -> None:
        """Refuse settings that are invalid for this built-in algorithm, or that are not among its `own` ones."""
        for name in sorted(OWN_NAMES - own.keys()):
            if getattr(self, name) is not None:
                owner = next(key for key, settings in OWN_SETTINGS.items() if name in settings)
                raise UserError(f"`{name}` is a setting of {owner}, but `algorithm` is {self.algorithm}.")
        if algorithm == "d4pg":
            if not self.v_min < self.v_max:
                raise UserError(f"`v_min` is {self.v_min}, but must be below `v_max`, which is {self.v_max}.")
            if self.v_max - self.v_min < 1e-6 * (self.atoms - 1) * max(-self.v_min, self.v_max, 1e-30):
                raise UserError(
                    f"`v_min` is {self.v_min} and `v_max` {self.v_max}, which is too narrow for `atoms={self.atoms}`: "
                    "float32 cannot tell them apart."
                )
        if algorithm == "dqn" and (self.critic_hidden is not None or self.layer_norm):
            raise UserError("`critic_hidden` and `layer_norm` are settings of critics, which dqn does not have.")
        if self.critic == "pooled":
            self._check_pooled(algorithm)
        if algorithm == "dqn" and self.share == "critics":
            raise UserError("`share` is critics, but dqn has only its Q networks; use actors or all.")
        if algorithm == "masac" and self.n_step > 1:
            raise UserError(
                f"`n_step` is {self.n_step}, but masac bootstraps after every step: the entropy of the steps between "
                "would be missing."
            )

    def _check_pooled(self, algorithm: str) -> None:
        """Refuse what critics that pool do not have."""
        if algorithm == "dqn":
            raise UserError("`critic` is pooled, but dqn has only its Q networks, which see what their agent sees.")
        if len(self.critic_layers) < 2:
            raise UserError(
                "`critic` is pooled, which needs two hidden layers or more, one of them before the mean; or use "
                "`critic=joint`."
            )
        if self.layer_norm:
            raise UserError("`layer_norm` is for critics that see all agents side by side, but `critic` is pooled.")


def own_settings(algorithm: str) -> Mapping[str, Any]:
    """What an algorithm has in place of None; the papers' settings for an unknown name, which is refused later."""
    if ":" not in algorithm:
        return OWN_SETTINGS.get(algorithm, PAPER)
    from shoal.algorithms import algorithm_class, base_algorithm

    kind = algorithm_class(algorithm)
    for name in kind.defaults:
        if name not in OWN_NAMES:
            raise UserError(
                f"`algorithm` is {algorithm}, whose `defaults` contain '{name}', but may only contain: "
                f"{', '.join(sorted(OWN_NAMES))}."
            )
    return {**OWN_SETTINGS.get(base_algorithm(kind), PAPER), **kind.defaults}


def algorithm_title(algorithm: str) -> str:
    """The name of an algorithm in titles."""
    return algorithm.partition(":")[2] or algorithm.upper()


def json_object(name: str, text: str) -> dict[str, Any]:
    """The JSON object in a setting; empty where there is none."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise UserError(f"`{name}` is not JSON ({error}); use e.g. '{{\"N\": 4}}'.") from None
    if not isinstance(value, dict):
        raise UserError(f"`{name}` must be a JSON object, e.g. '{{\"N\": 4}}'.")
    return value


Config = TypeVar("Config")


def as_declared(config: Config) -> Config:
    """The same settings in the types that their fields declare: configurations also come from Python and from JSON.

    numpy numbers, lists and paths are converted; anything else is refused.
    """
    hints = get_type_hints(type(config))
    names = [field.name for field in fields(config)]  # type: ignore[arg-type]
    return replace(config, **{name: _declared(name, getattr(config, name), hints[name]) for name in names})  # type: ignore[type-var]


def _declared(what: str, value: Any, hint: Any) -> Any:
    """A setting in the type that its field declares."""
    import numpy as np  # here, because the command line is parsed before numpy starts its threads

    if NoneType in get_args(hint):
        if value is None:
            return None
        hint = next(kind for kind in get_args(hint) if kind is not NoneType)
    kinds = get_args(hint) or (hint,)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple | np.ndarray):
            raise UserError(f"{setting(what)} is {value!r}, but must be a list of whole numbers.")
        return tuple(_declared(what, element, kinds[0]) for element in value)
    if get_origin(hint) is Literal:
        check_choice(what, str(value), kinds)
        return str(value)
    if bool in kinds:
        if not isinstance(value, bool | np.bool_):
            raise UserError(f"{setting(what)} is {value!r}, but must be true or false.")
        return bool(value)
    if str in kinds:
        if not isinstance(value, str | PathLike):
            raise UserError(f"{setting(what)} is {value!r}, but must be a string.")
        return fspath(value)
    if float in kinds:
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise UserError(f"{setting(what)} is {value!r}, but must be a finite number.")
        return float(value)
    return whole_number(what, value)
