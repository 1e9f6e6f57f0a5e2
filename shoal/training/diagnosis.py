"""Diagnosis of a training: entropy of the policies, Q values against actual returns, gradient norms.

Recent transitions are drawn from the ring with a random stream of their own, and evaluated by copies of the online
networks in numpy, so that results are the same with and without diagnoses. See docs/returns.md, "Diagnosis".
Shape letters: B rows, N agents, O observation, A action, U a policy's outputs, C critics, S of them in the stack,
J joint, H hidden units.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.algorithms.base import BaseTeam, heads, outcomes_of, own_columns
from shoal.envs.base import EnvSpec
from shoal.inference.explore import explored
from shoal.inference.policy import LOG_STD_HIGH, LOG_STD_LOW, Policy
from shoal.networks.layout import network_numbers
from shoal.quantization.export import from_team
from shoal.replay import Returns, Ring
from shoal.seeding import stream

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]
EVERY = 250  # updates between diagnoses, so that they cost less than 1 %
ROWS = 128  # transitions of a diagnosis
RECENT = 5_000  # they are drawn from this many newest ones of all copies, played by policies like the present ones
LEAST, LONGEST = 0.01, 500  # actual returns end where the discount falls below the first, or after this many steps
DECAY = 0.999  # of Adam's second moments


def is_due(updates: int, new: int) -> bool:
    """Whether update 1, 1 + EVERY, 1 + 2 EVERY, … is among the `new` latest ones."""
    return new > 0 and (updates - 1) // EVERY > (updates - new - 1) // EVERY


@np.errstate(all="ignore")  # of a diverging training: numbers that are not finite are null in the log
def diagnose(team: BaseTeam, ring: Ring, seed: int, updates: int) -> dict[str, float]:
    """Numbers for the log by name: means, and with several agents also each one's.

    Third-party algorithms, whose networks are unknown, and agents with several choices have none.
    """
    if ":" in team.config.algorithm or team.spec.choices:
        return {}
    columns = _of_agents(team, ring, stream(seed, f"diagnosis {updates}"))
    line = {name: float(values.mean()) for name, values in columns.items()}
    if team.spec.agents > 1:
        for name, values in columns.items():
            agents = zip(team.spec.agent_names, values.tolist(), strict=True)
            line |= {f"{name}/agent/{agent}": value for agent, value in agents}
    return line | dict(_gradients(team))


def _of_agents(team: BaseTeam, ring: Ring, rng: np.random.Generator) -> dict[str, Floats]:
    """Numbers of each agent (N,)."""
    config, weights, discount = team.config, team.weights(), team.config.discount
    live = np.minimum(ring.added - ring.oldest, -(-RECENT // ring.copies))
    copies = rng.choice(np.flatnonzero(live), (1, ROWS))
    which = copies, ring.added[copies] - 1 - (rng.random(copies.shape) * live[copies]).astype(np.int64)
    longest = math.log(LEAST) / math.log(discount) if 0 < discount < 1 else LONGEST * discount
    step = _gathered(team, ring, which, config.n_step)
    rest = _gathered(team, ring, which, 1 + int(min(max(longest, config.n_step), LONGEST)))

    policy = replace(from_team(team, one_agent=True), normaliser=None)  # the rows are normalised already
    seen = np.concatenate([step.seen, step.seen_after, rest.seen_after])
    outputs = policy.apply_masks(policy.network().outputs(seen, np.float32), seen)  # (3B, N, U)
    here, after = outputs[:ROWS], outputs[ROWS:]
    drawn = explored(policy, after, _noise(team, after, rng), 0.0)
    played = np.concatenate([step.action, drawn[:ROWS] * step.acts_after, drawn[ROWS:] * rest.acts_after])
    q, q_step, q_rest = np.split(_values(team, weights, seen, played, outputs), 3, 1)  # (N, B) each

    columns = {"policy/same_action": _same_action(policy, here, step.weight)}
    bonus: Floats = np.zeros((len(q), 1))  # of the entropy of one more step
    if team.kind in ("categorical", "gaussian"):
        entropy = (_entropy(policy, here, _noise(team, here, rng)) * step.weight).sum(-1)
        columns["policy/entropy"] = entropy
        if config.algorithm == "masac":
            temperature = np.exp(weights["temperature.log"]) if config.learn_entropy else config.entropy
            bonus = temperature * entropy[:, None]

    def expected(rows: Recent, after: Floats) -> Floats:
        """The discounted rewards of these rows that their Q values predict, given the Q values after them."""
        discounts = np.cumsum(discount ** np.arange(1, LONGEST + 2))
        return q - rows.bootstrap * after - bonus * discounts[rows.steps - 1]

    def mean(values: Floats) -> Floats:
        return np.asarray((values * step.weight).sum(-1))

    predicted = expected(rest, q_rest)
    return columns | {
        "q/value": mean(q),
        "q/predicted": mean(predicted),
        "q/actual": mean(rest.reward),
        "q/actual_rms": np.sqrt(mean(rest.reward**2)),
        "q/error": np.sqrt(mean((predicted - rest.reward) ** 2)),
        "q/td_error": np.sqrt(mean((expected(step, q_step) - step.reward) ** 2)),
    }


class Recent(NamedTuple):
    """Returns of one or more steps, copied because the ring reuses its arrays."""

    seen: Floats  # (B, N, O)
    action: Floats  # (B, N, A)
    seen_after: Floats  # (B, N, O)
    acts_after: Floats | int  # (B, N, 1)  0 for an agent that has left
    reward: Floats  # (N, B)  discounted and added
    bootstrap: Floats | float  # (N, B)
    steps: Indices  # (B,)
    weight: Floats  # (N, B)  for means over the rows that an agent took part in


def _gathered(team: BaseTeam, ring: Ring, which: tuple[Indices, Indices], n_step: int) -> Recent:
    """The `n_step` returns of these copies and transitions (1, B)."""
    spec, agents = team.spec, team.spec.agents
    batch = ring.gather(*which, n_step, team.config.discount)
    team.normalisation.apply(batch)
    outcomes, seen = outcomes_of(batch, spec, team.config.discount), agents * spec.observation_size
    after, weight = outcomes.next_alive, outcomes.weight
    return Recent(
        batch.joint[0, :, :seen].reshape(ROWS, agents, -1).copy(),
        batch.joint[0, :, seen:].reshape(ROWS, agents, -1).copy(),
        batch.next_joint[0, :, :seen].reshape(ROWS, agents, -1).copy(),
        1 if after is None else after.swapaxes(0, 1).copy(),
        own_columns(batch.reward).copy(),
        outcomes.bootstrap,
        batch.steps[0].copy() if isinstance(batch, Returns) else np.ones(ROWS, np.int64),
        np.full((agents, ROWS), 1 / ROWS) if weight is None else weight,
    )


# ---- policies -------------------------------------------------------------------------------------------------------


def _noise(team: BaseTeam, outputs: Floats, rng: np.random.Generator) -> NDArray[np.float32]:
    """(B, N, A): the noise with which policies are sampled; zeros for deterministic ones."""
    shape = (*outputs.shape[:2], team.spec.action_size)
    if team.kind == "categorical":
        return rng.gumbel(size=shape).astype(np.float32)
    return rng.standard_normal(shape, np.float32) if team.kind == "gaussian" else np.zeros(shape, np.float32)


def _entropy(policy: Policy, outputs: Floats, noise: Floats) -> Floats:
    """(N, B): exact for choices, for boxes minus the log-probability of the actions drawn with this noise."""
    if policy.head.discrete:
        logits = outputs + policy.mask
        logits -= logits.max(-1, keepdims=True)
        powers = np.exp(logits)
        total = powers.sum(-1)
        return np.asarray((np.log(total) - (powers * logits).sum(-1) / total).T)
    mean, squashed = np.split(outputs, 2, -1)
    log_deviation = LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (np.tanh(squashed) + 1)
    before = mean + np.exp(log_deviation) * noise
    log_slope = 2 * (math.log(2) - before - np.logaddexp(0, -2 * before))  # of tanh
    each = 0.5 * noise**2 + log_deviation + 0.5 * math.log(2 * math.pi) + log_slope
    return np.asarray((each * (policy.mask == 0)).sum(-1).T)


def _same_action(policy: Policy, outputs: Floats, weight: Floats) -> Floats:
    """(N,): share of states in which a policy's greedy action is its most common one; boxes rounded to tenths."""
    if policy.head.discrete:
        actions = (outputs + policy.mask).argmax(-1)[..., None]  # (B, N, 1)
    else:
        actions = np.rint(10 * np.tanh(outputs[..., : policy.action_size]) * (policy.mask == 0))
    shares = []
    for own, weights in zip(actions.swapaxes(0, 1), weight, strict=True):
        which = np.unique(own, axis=0, return_inverse=True)[1]
        shares.append(np.bincount(which.ravel(), weights).max())
    return np.array(shares)


# ---- values ---------------------------------------------------------------------------------------------------------


def _values(team: BaseTeam, weights: Mapping[str, NDArray], seen: Floats, played: Floats, outputs: Floats) -> Floats:
    """(N, B): the Q values of these actions; the smallest of several critics."""
    if team.kind == "values":
        return np.asarray((outputs * played).sum(-1).T)
    config, rows = team.config, len(seen)
    own = {name.removeprefix("critics."): array for name, array in weights.items() if name.startswith("critics.")}
    number = network_numbers(team.spec, config.shared_critics)
    of = (number[:, None] * heads(config) + np.arange(heads(config))).ravel()  # (C,): which of the stack
    x = (_pooled if config.critic == "pooled" else _joint)(own, seen, played, team.spec, of)  # (C, B, …)
    for k in range(len(config.critic_layers)):
        x = (np.maximum(x, 0) if k else x) @ own[f"rest.weights.{k}"][of] + own[f"rest.biases.{k}"][of]
    if config.algorithm == "d4pg":
        powers = np.exp(x - x.max(-1, keepdims=True))
        x = powers @ np.linspace(config.v_min, config.v_max, config.atoms)[:, None] / powers.sum(-1, keepdims=True)
    return np.asarray(x.reshape(len(number), heads(config), rows).min(1))


def _joint(own: Mapping[str, NDArray], seen: Floats, played: Floats, spec: EnvSpec, of: Indices) -> Floats:
    """(C, B, H): the first layer of critics that see all agents side by side."""
    first, rows = own["first"], len(seen)  # (J, S, H)
    joint = np.concatenate([seen.reshape(rows, -1), played.reshape(rows, -1)], 1)
    x = (joint @ first.reshape(len(first), -1)).reshape(rows, *first.shape[1:]).swapaxes(0, 1)[of] + own["first_bias"]
    if "norm.gain" not in own:
        return np.maximum(x, 0)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return np.asarray(np.tanh(own["norm.offset"][of] + x * own["norm.gain"][of]))


def _pooled(own: Mapping[str, NDArray], seen: Floats, played: Floats, spec: EnvSpec, of: Indices) -> Floats:
    """(C, B, 2H): the own agent's embedding and the mean of all, of critics that pool."""
    x = np.concatenate([seen, played], 2).swapaxes(0, 1)  # (N, B, I)
    kinds = list(spec.kinds)
    embedded = np.maximum(x @ own["first"][:, kinds] + own["first_bias"][:, kinds], 0)  # (S, N, B, H)
    agents = np.repeat(np.arange(spec.agents), len(of) // spec.agents)
    return np.concatenate([embedded[of, agents], embedded.mean(1)[of]], 2)


# ---- gradients ------------------------------------------------------------------------------------------------------


def _gradients(team: BaseTeam) -> Iterator[tuple[str, float]]:
    """Root mean square norm of a network's clipped gradients in about the last 1,000 updates, from Adam's moments.

    A norm is at most the limit, and is the limit where it was clipped: the mean square as a share of the limit's is an
    upper bound of the share of clipped ones.
    """
    config, state = team.config, team.optimizer_state()
    for part in ("actors", "critics"):
        squares = [array for name, array in state.items() if name.startswith(f"{part}.") and name.endswith(".square")]
        if not squares:
            continue
        networks = len(squares[-1])
        counted = networks * (1 - DECAY ** max(1.0, float(state[f"{part}.0.step"])))
        means = [float(square.sum()) / counted for square in squares]  # of the arrays' squared norms
        yield f"gradient/{part}", math.sqrt(sum(means))
        if config.clip:
            shared = config.shared_actors if part == "actors" else config.shared_critics
            members = np.bincount(network_numbers(team.spec, shared))  # whose gradients are added
            mean = sum(means) if config.clip_by == "network" else sum(means) / len(means)
            yield f"gradient/{part}_clipped", mean / (config.clip**2 * float(np.mean(members**2)))
