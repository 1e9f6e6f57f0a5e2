"""Critics as operations: over all observations and actions side by side, or over the embeddings of all agents.

A pass has two parts: the part that is the same for all agents that share a critic and a mini-batch, computed once
(`see`), and the part of each agent.
Shape letters: N agents, B batch rows, O observation, A action, J joint, H hidden units.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.envs.base import EnvSpec
from shoal.native.networks import Network, Networks, Shape, chain
from shoal.native.operations import NOWHERE, Rows
from shoal.native.program import padded

if TYPE_CHECKING:
    from shoal.algorithms.config import LearnConfig


@dataclass(frozen=True)
class Seen:
    """The part of a critic's pass over joint rows that all agents which share it have in common."""

    joint: Rows
    agents: tuple[int, ...]  # that use this pass
    product: Rows | None = None  # of a layer, shared by the agents; None: each agent computes its own
    total: Rows | None = None  # gradient before that layer's ReLU, added up over the agents
    embeddings: tuple[Rows, ...] = ()  # of each agent
    mean: Rows | None = None  # of the embeddings
    gradients: tuple[Rows, ...] = ()  # of each of `agents`, before the ReLU of the layer after the mean


def critic_shape(spec: EnvSpec, config: "LearnConfig", members: int) -> Shape:
    """The layers of a critic that at most so many agents share."""
    o, a, layers = spec.observation_size, spec.action_size, config.critic_layers
    if config.critic == "pooled":
        kinds, units = max(spec.kinds) + 1, layers[0]
        behind = [((units, units), layers[1]), *chain(*layers[1:], 1)]
        return Shape(((o, a) * kinds, units), *behind, value=True, biases=kinds)
    return Shape(*chain(spec.agents * (o + a), *layers, 1), value=True, biases=members)


class Critic(Network):
    """One agent's critic over the joint rows, which other agents may share."""

    def __init__(self, stack: Networks, number: int, spec: EnvSpec, sharing: list[int], agent: int) -> None:
        """`sharing`: the agents that have this critic."""
        super().__init__(stack, number)
        self.spec, self.sharing, self.agent, self.member = spec, sharing, agent, sharing.index(agent)

    def asking(self, together: bool) -> tuple[int, ...]:
        """The agents that use one shared pass, or this agent alone."""
        return tuple(self.sharing) if together else (self.agent,)

    def observation(self, joint: Rows, agent: int) -> Rows:
        """What an agent saw."""
        return joint.columns(agent * self.spec.observation_size, self.spec.observation_size)

    def played(self, joint: Rows, agent: int) -> Rows:
        """What an agent played."""
        return joint.columns(self.action_column(agent), self.spec.action_size)

    def action_column(self, agent: int) -> int:
        """Where in a joint row an agent's action begins."""
        return self.spec.agents * self.spec.observation_size + agent * self.spec.action_size

    def see(self, joint: Rows, together: bool = False, learn: bool = False) -> Seen:
        """The shared part, for all agents `together` or for this one; `learn`: with room for its gradients."""
        raise NotImplementedError

    def value(self, seen: Seen) -> list[Rows]:
        """Q of the rows as they are: every layer's output, the last one's behind all others."""
        raise NotImplementedError

    def learn(self, seen: Seen, gradient: Rows, outputs: list[Rows], into: int) -> None:
        """Add the gradients of the agent's own part at `into`, given that of the output."""
        raise NotImplementedError

    def learn_seen(self, seen: Seen, into: int) -> None:
        """Add the gradients of the shared part."""

    def value_of(self, seen: Seen, action: Rows) -> list[Rows]:
        """Q where the own agent's action is `action`, all else as in the rows."""
        raise NotImplementedError

    def first_gradient(self, gradient: Rows, outputs: list[Rows]) -> Rows:
        """The gradient before the ReLU of the layer that reads the own action, given that of the output."""
        return self.behind(0, gradient, outputs, into=None)

    def transpose_own(self, to: int) -> None:
        """A transposed copy of the weights of the own agent's action, at `to`."""
        raise NotImplementedError


class JointCritic(Critic):
    """A critic over all observations and actions side by side.

    Agents that share it have each a bias of their own in the first layer, whose product is computed once for all.
    """

    def see(self, joint: Rows, together: bool = False, learn: bool = False) -> Seen:
        if not together:
            return Seen(joint, self.asking(together))
        layer = self.shape.layers[0]
        product = self.program.scratch(layer.units)
        self.program.affine(product, joint, self.at + layer.weight, layer.inputs, NOWHERE, 0, relu=False)
        total = self.program.scratch(product.ld) if learn else None
        return Seen(joint, self.asking(together), product, total)

    @property
    def own_bias(self) -> int:
        """Where this agent's first bias begins, counted from the network's first number."""
        layer = self.shape.layers[0]
        return layer.bias + self.member * padded(layer.units)

    def value(self, seen: Seen) -> list[Rows]:
        return self.rest([seen.joint, self._first(seen, relu=True)])

    def _first(self, seen: Seen, relu: bool) -> Rows:
        layer, bias = self.shape.layers[0], self.at + self.own_bias
        out = self.program.scratch(layer.units)
        if seen.product is None:
            self.program.affine(out, seen.joint, self.at + layer.weight, layer.inputs, bias, 0, relu)
        else:
            self.program.add(out, seen.product, Rows(bias, 0, layer.units), relu)
        return out

    def learn(self, seen: Seen, gradient: Rows, outputs: list[Rows], into: int) -> None:
        program, gradient = self.program, self.behind(0, gradient, outputs, into)
        if seen.total is None:
            program.to_weight(into + self.shape.layers[0].weight, seen.joint, gradient)
        elif self.member:
            program.add(seen.total, seen.total, gradient)
        else:
            program.copy(seen.total, gradient)
        program.add_columns(into + self.own_bias, gradient)

    def learn_seen(self, seen: Seen, into: int) -> None:
        if seen.total is not None:
            self.program.to_weight(into + self.shape.layers[0].weight, seen.joint, seen.total)

    def value_of(self, seen: Seen, action: Rows) -> list[Rows]:
        """Q where the own agent's action is `action`, all else as in the rows.

        The input differs in that action alone, so the first layer is computed with the action as played and corrected
        by (action - played) W_own.
        """
        change = self.program.scratch(self.spec.action_size)
        self.program.subtract(change, action, self.played(seen.joint, self.agent))
        layer, out = self.shape.layers[0], self._first(seen, relu=False)
        column = self.action_column(self.agent)
        self.program.affine(out, change, self.at + layer.weight, layer.inputs, None, column, relu=True)
        return self.rest([seen.joint, out])

    def transpose_own(self, to: int) -> None:
        layer, spec = self.shape.layers[0], self.spec
        first, count = self.action_column(self.agent), spec.action_size
        self.program.transpose(to, self.at + layer.weight, layer.inputs, first, count, layer.units)


class DenseCritic(JointCritic):
    """The same, where the first layer is computed in full for a new action."""

    def value_of(self, seen: Seen, action: Rows) -> list[Rows]:
        whole = self.program.scratch(seen.joint.width)
        self.program.copy(whole, seen.joint)
        self.program.copy(self.played(whole, self.agent), action)
        return self.value(Seen(whole, seen.agents))


class PooledCritic(Critic):
    """A critic over the embeddings e of all agents: rest([e of the own agent, mean of all e]).

    The first layer has a block of inputs for the observation and one for the action of every kind of agent; the second
    has one for the own embedding and one for the mean, whose product is computed once for all agents.
    """

    def see(self, joint: Rows, together: bool = False, learn: bool = False) -> Seen:
        program, (first, second, *_) = self.program, self.shape.layers
        agents = range(self.spec.agents)
        embeddings = tuple(program.scratch(first.units) for _ in agents)
        for j, embedding in enumerate(embeddings):
            self._embed(embedding, self.observation(joint, j), self.played(joint, j), self.spec.kinds[j])
        mean, product = program.scratch(first.units), program.scratch(second.units)
        self._mean(mean, embeddings)
        program.affine(product, mean, self.at + second.block(1), first.units, self.at + second.bias, 0, relu=False)
        total = program.scratch(second.units) if learn else None
        asking = self.asking(together)
        gradients = tuple(program.scratch(second.units) for _ in asking) if learn else ()
        return Seen(joint, asking, product, total, embeddings, mean, gradients)

    def _embed(self, out: Rows, observation: Rows, action: Rows, kind: int) -> None:
        layer = self.shape.layers[0]
        bias = self.at + layer.bias + kind * padded(layer.units)
        self.program.affine(out, observation, self.at + layer.block(2 * kind), observation.width, bias, 0, relu=False)
        self.program.affine(out, action, self.at + layer.block(2 * kind + 1), action.width, None, 0, relu=True)

    def _mean(self, out: Rows, rows: tuple[Rows, ...]) -> None:
        """The sum of these rows, which lie one after the other, over the number of agents."""
        step = rows[-1].at - rows[-2].at if len(rows) > 1 else 0
        self.program.scaled_sum(out, rows[0], step, len(rows), 1 / self.spec.agents)

    def value(self, seen: Seen) -> list[Rows]:
        assert seen.product is not None
        own = seen.embeddings[self.agent]
        out = self._second(own)
        self.program.add(out, out, seen.product, relu=True)
        return self.rest([seen.joint, own, out])

    def _second(self, own: Rows) -> Rows:
        """The part of the second layer that reads the own embedding, before the rest is added."""
        layer = self.shape.layers[1]
        out = self.program.scratch(layer.units)
        self.program.affine(out, own, self.at + layer.block(0), own.width, NOWHERE, 0, relu=False)
        return out

    def learn(self, seen: Seen, gradient: Rows, outputs: list[Rows], into: int) -> None:
        assert seen.total is not None
        program, layer, place = self.program, self.shape.layers[1], seen.agents.index(self.agent)
        own = seen.gradients[place]
        program.add(own, self.behind(1, gradient, outputs, into), None)
        program.to_weight(into + layer.block(0), outputs[1], own)
        program.add_columns(into + layer.bias, own)
        program.add(seen.total, own, seen.total if place else None)

    def learn_seen(self, seen: Seen, into: int) -> None:
        assert seen.total is not None and seen.mean is not None
        program, (first, second, *_) = self.program, self.shape.layers
        program.to_weight(into + second.block(1), seen.mean, seen.total)
        common, below = program.scratch(first.units), program.scratch(first.units)
        program.to_input(below, seen.total, self.transposed + second.transposed_block(1), mask=None)
        self._mean(common, (below,))
        for j, (kind, embedding) in enumerate(zip(self.spec.kinds, seen.embeddings, strict=True)):
            if j in seen.agents:
                own = seen.gradients[seen.agents.index(j)]
                program.to_input(below, own, self.transposed + second.transposed_block(0), mask=None)
                program.add(below, below, common, mask=embedding)
            else:
                program.add(below, common, None, mask=embedding)
            program.to_weight(into + first.block(2 * kind), self.observation(seen.joint, j), below)
            program.to_weight(into + first.block(2 * kind + 1), self.played(seen.joint, j), below)
            program.add_columns(into + first.bias + kind * padded(first.units), below)

    def value_of(self, seen: Seen, action: Rows) -> list[Rows]:
        assert seen.product is not None
        program, (first, second, *_) = self.program, self.shape.layers
        fresh, change = program.scratch(first.units), program.scratch(first.units)
        observation = self.observation(seen.joint, self.agent)
        self._embed(fresh, observation, action, self.spec.kinds[self.agent])
        out = self._second(fresh)
        program.add(out, out, seen.product)
        program.subtract(change, fresh, seen.embeddings[self.agent])
        self._mean(change, (change,))
        program.affine(out, change, self.at + second.block(1), first.units, None, 0, relu=True)
        return self.rest([seen.joint, fresh, out])

    def first_gradient(self, gradient: Rows, outputs: list[Rows]) -> Rows:
        program, (first, second, *_) = self.program, self.shape.layers
        gradient = self.behind(1, gradient, outputs, into=None)
        below, share = program.scratch(first.units), program.scratch(gradient.width)
        self._mean(share, (gradient,))  # of the output through the mean
        program.to_input(below, share, self.transposed + second.transposed_block(1), mask=None)
        program.to_input(below, gradient, self.transposed + second.transposed_block(0), mask=outputs[1], add=True)
        return below

    def transpose_own(self, to: int) -> None:
        layer, actions = self.shape.layers[0], self.spec.action_size
        source = self.at + layer.block(2 * self.spec.kinds[self.agent] + 1)
        self.program.transpose(to, source, actions, 0, actions, layer.units)


def critic_of(config: "LearnConfig") -> type[Critic]:
    """How critics of this configuration compute."""
    if config.critic == "pooled":
        return PooledCritic
    return DenseCritic if config.first_layer == "dense" else JointCritic
