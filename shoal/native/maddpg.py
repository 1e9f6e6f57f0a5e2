"""MADDPG as a program: the same text as `algorithms/maddpg.py`, recorded agent by agent instead of computed.

An update of all agents, in the papers' words: target Q, Q loss, P loss, target update. Every method records what is
computed for one agent on some rows of the mini-batch; `record` says which pieces there are and which need which:

    next actions of all agents ──► Q loss of agent i ──► its critic steps ──► P loss of agent i ──► its actor steps

Gradients of the parts of a mini-batch are added up before a step. Each agent's target networks move right after its
step: nothing in between reads them.
Shape letters: N agents, M mini-batches (1 shared, or N), B batch rows, O observation, A action, J joint.
"""

from collections.abc import Callable
from itertools import chain as joined
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from shoal.envs.base import EnvSpec, members
from shoal.inference.policy import MASKED
from shoal.native.critics import Critic, DenseCritic, Seen, critic_of, critic_shape
from shoal.native.networks import Networks, Shape, chain
from shoal.native.operations import NOWHERE, Rows
from shoal.native.program import Program, Span, padded
from shoal.networks.layout import network_numbers

if TYPE_CHECKING:
    from shoal.algorithms.config import LearnConfig

CHUNK = 96  # rows that go through a network together: their activations stay in the second-level cache
NEXT, OWN, REDRAWN, ENTROPY = range(4)
"""What noise is for: next actions, an agent's own action in its P loss, redrawn actions, an online policy's entropy."""
TAIL = 16  # numbers behind an agent's gradients: its loss, its entropy, and the gradient of its temperature


def parts_for(groups: int, rows: int) -> int:
    """Parts into which a mini-batch is cut: enough pieces for several threads, but not many sums of gradients."""
    return max(1, min(12 // groups, rows // CHUNK))


def copies_of_weights(spec: EnvSpec, config: "LearnConfig", threads: int) -> tuple[float, float]:
    """How often all actors' weights, and all critics', are in native memory: online and target networks, transposed
    copies and Adam's two moments; gradients of every part of the mini-batch, and one group's for every thread."""
    groups = (len(set(network_numbers(spec, shared))) for shared in (config.share != "none", config.shared_critics))
    actors, critics = (5 + parts_for(count, config.batch) + threads / count for count in groups)
    return actors, critics


class MADDPG:
    """A team's networks in native memory, and the program of an update."""

    losses: tuple[str, ...] = ("q", "p")
    heads = 1  # critics per agent
    policy_heads = 1  # of these in the loss of an actor
    head_width = 1  # outputs of an actor, in actions
    has_target_actors = True
    joint_targets = False  # whether targets need the next actions of the whole mini-batch

    def __init__(self, spec: EnvSpec, config: "LearnConfig", hard: bool, dtype: type = np.float32) -> None:
        """`hard`: samples of choices are one-hot, with the straight-through gradient."""
        self.spec, self.config, self.hard = spec, config, hard
        n, o, a = spec.agents, spec.observation_size, spec.action_size
        self.joint_size = n * (o + a)
        self.batch = config.batch
        self.minibatches = 1 if config.minibatch == "shared" else n
        self.actor_of, self.critic_of = (
            network_numbers(spec, shared).tolist() for shared in (config.shared_actors, config.shared_critics)
        )
        # agents whose Q losses, or whose P losses, are computed together
        self.critic_groups = members(self.critic_of)
        self.actor_groups = members(network_numbers(spec, config.share != "none").tolist())
        self.parts, self.critic_parts = (
            parts_for(len(groups), self.batch) for groups in (self.actor_groups, self.critic_groups)
        )
        self.program = program = Program(dtype, self.batch, CHUNK)
        rows = self.minibatches * self.batch
        self.joint, self.next_joint = program.buffer(self.joint_size), program.buffer(self.joint_size)
        self.reward = program.buffer(n)
        self.bootstrap = program.array(np.full((n, self.batch), config.discount), stride=1)
        self.weight = program.array(np.full((n, self.batch), 1 / self.batch), stride=1)
        self.alive = self.next_alive = NOWHERE
        if not spec.fixed_length:  # agents may have ended or left early
            self.alive, self.next_alive = (program.array(np.ones((n, rows)), stride=1) for _ in range(2))
        self.redrawn = program.zeros(rows * self.joint_size, self.joint_size) if config.others == "current" else 0
        self.loss = program.zeros(len(self.losses) * n)
        self._make_networks()
        self.action = program.own_rows(padded(a))
        self.record()

    def _make_networks(self) -> None:
        n, o, a, hidden = self.spec.agents, self.spec.observation_size, self.spec.action_size, self.config.hidden
        actor = Shape(*chain(o, *hidden, self.head_width * a))
        most = max(map(len, self.critic_groups))
        critic = critic_shape(self.spec, self.config, most)
        actors, critics = len(set(self.actor_of)), self.heads * len(self.critic_groups)
        self.actors = self.rollout_actors = Networks(self.program, actor, actors)
        self.critics = Networks(self.program, critic, critics)
        self.target_critics = Networks(self.program, critic, critics, learned=False)
        self.networks = {"actors": self.actors, "critics": self.critics, "target_critics": self.target_critics}
        if self.has_target_actors:
            self.target_actors = Networks(self.program, actor, actors, learned=False)
            self.networks["target_actors"] = self.target_actors
        self.own_size = critic.layers[0].units * padded(a)
        self.own_transposed = self.program.zeros(n * self.heads * self.own_size)
        self.critic_gradients = self.program.own(self.heads * critic.size + most * TAIL)
        sizes = [len(self._actors_in(group)) * actor.size + len(group) * TAIL for group in self.actor_groups]
        self.actor_gradients = self.program.own(max(sizes))
        self.summed = self.program.own(0)  # the gradients that a step uses; see Program.gather

    # ---- which pieces there are --------------------------------------------------------------------------------------

    def record(self) -> None:
        """All pieces of an update, in an order in which they can be done."""
        program = self.program
        parts, critic_parts = (
            list(pairwise(self.batch * part // count for part in range(count + 1)))
            for count in (self.parts, self.critic_parts)
        )
        read = program.counter()  # policies that others' mini-batches were played with: they may change after that
        chosen = self._record_actions(self.next_actions, parts, read)

        valued = {i: counter for group in self.actor_groups for counter in [program.counter()] for i in group}
        for group in self.critic_groups:
            i, slot, done = group[0], program.new_slots(self.critic_gradients, self.critic_parts), program.counter()
            span = self.q_loss(group)
            for part, rows in enumerate(critic_parts):
                program.piece(span, tells=[done], needs=[chosen[self.own(i)][part]], rows=rows, slot=slot + part)
            program.piece(self.step_critics(group, slot), tells=[valued[i]], needs=[done], alone=True)

        current = self.config.others == "current"
        redrawn = self._record_actions(self.redraw_actions, parts, read) if current else []
        for group in self.actor_groups:
            i, slot, done = group[0], program.new_slots(self.actor_gradients, self.parts), program.counter()
            span = self.p_loss(group)
            for part, rows in enumerate(parts):
                needs = [valued[i], *([redrawn[self.own(i)][part]] if current else [])]
                program.piece(span, tells=[done], needs=needs, rows=rows, slot=slot + part)
            program.piece(self.step_actors(group, slot), needs=[done, read], alone=True)

    def _record_actions(
        self, actions: Callable[[int, int], Span], parts: list[tuple[int, int]], read: int
    ) -> list[list[int]]:
        """All agents' actions in all mini-batches; counters of those that are done, by mini-batch and part of it."""
        program, minibatches = self.program, range(self.minibatches)
        count = 1 if self.joint_targets or self.critic_parts != self.parts else self.parts
        done = [[program.counter() for _ in range(count)] * (self.parts // count) for _ in minibatches]
        if len(self.actor_groups) < self.spec.agents:  # a group's pieces read all its agents' mini-batches
            done = done[:1] * self.minibatches
        spans = [[actions(i, m) for i in range(self.spec.agents)] for m in minibatches]
        for part, rows in enumerate(parts):
            for m in minibatches:
                for span in spans[m]:
                    program.piece(span, tells=[done[m][part], read], rows=rows)
        return done

    def record_acting(self, seen: int, chosen: int, explore: bool) -> list[Span]:
        """Operations of each agent's policy on observations (E, N, O), for actions (E, N, A): as in rollouts, or the
        most likely ones."""
        program, spec, spans = self.program, self.spec, []
        width, size = spec.observation_size, spec.action_size
        for i in range(spec.agents):
            with program.span() as span:
                span.every_chunk()
                observation = Rows(seen + i * width, spec.agents * width, width)
                head, action = self.outputs(self.rollout_actors, observation, i)[-1], program.scratch(size)
                if explore:
                    self.sample(action, head, i, i)
                    if not spec.discrete and self.head_width == 1:  # a point of the box
                        program.add_noise(action, spec.action_sizes[i], i, self.config.exploration_noise)
                elif spec.discrete:
                    program.greedy_choices(action, head, spec.action_sizes[i])
                else:
                    program.squash(action, head, spec.action_sizes[i])
                program.copy(Rows(chosen + i * size, spec.agents * size, size), action)
            spans.append(span)
        return spans

    def record_derived(self) -> None:
        """Pieces that compute what is derived from weights, for weights that were loaded."""
        for networks in (self.actors, self.critics):
            for number in range(networks.count):
                with self.program.span() as span:
                    networks[number].transpose()
                self.program.piece(span, alone=True)
        for i in range(self.spec.agents):
            with self.program.span() as span:
                self.transpose_own(i)
            self.program.piece(span, alone=True)

    # ---- an update ---------------------------------------------------------------------------------------------------

    def next_actions(self, i: int, m: int) -> Span:
        """Actions of the target policy of agent i for the next observations of mini-batch m."""
        program = self.program
        with program.span("target Q: next action") as span:
            span.every_chunk()
            head = self.outputs(self.target_actors, self.observation(self.next_joint, i, m), i)[-1]
            self.sample(self.action, head, i, self.stream(NEXT, i, m))
            span.publish()
            program.copy(self.played(self.next_joint, i, m), self.action, self.presence(self.next_alive, i, m))
        return span

    def target_q(self, i: int, seen: list[Seen | None]) -> Rows:
        """r + gamma Q'(o', a') with a' of the target policies; a true end has no future, a time limit has."""
        program, target = self.program, self.program.vector()
        program.phase("target Q: target Q next")
        with program.temporary():
            critics = zip(self.critics_of(i, target=True), seen, strict=True)
            rows = self.rows(self.next_joint, self.own(i))
            next_q = [critic.value(common or critic.see(rows))[-1] for critic, common in critics]
            program.phase("target Q: target Q")
            self.back_up(target, next_q, i)
        return target

    def back_up(self, target: Rows, next_q: list[Rows], i: int) -> None:
        """What the critics' output for the next step is worth now."""
        self.program.back_up(target, self.rewards(i), self.bootstrap + i * self.batch, next_q[0])

    def q_loss(self, group: list[int]) -> Span:
        """Mean squared error of the critics of these agents, which share them, and its gradients."""
        program, size = self.program, self.critics.shape.size
        loss = self.critic_gradients + self.heads * size
        with program.span("Q loss") as span:
            program.clear(self.critic_gradients, self.heads * size + len(group) * TAIL)
            for i in group:
                self.before_targets(i)
            span.every_chunk()
            program.phase("target Q: target Q next")
            seen_next = self.seen_together(group, self.next_joint, target=True)
            program.phase("Q loss")
            seen = self.seen_together(group, self.joint, learn=True)
            for place, i in enumerate(group):
                with program.temporary():
                    target = self.target_q(i, seen_next)
                    program.phase("Q loss")
                    for head, critic in enumerate(self.critics_of(i)):
                        with program.temporary():
                            own = seen[head] or critic.see(self.rows(self.joint, self.own(i)), learn=True)
                            outputs, into = critic.value(own), self.critic_gradients + head * size
                            gradient, weight = program.vector(), self.weight + i * self.batch
                            program.squared_error(gradient, outputs[-1], target, weight, loss + place * TAIL)
                            critic.learn(own, gradient, outputs, into)
                            if seen[head] is None:
                                critic.learn_seen(own, into)
            for head, (critic, common) in enumerate(zip(self.critics_of(group[0]), seen, strict=True)):
                if common is not None:
                    critic.learn_seen(common, self.critic_gradients + head * size)
        return span

    def seen_together(
        self, group: list[int], joint: int, target: bool = False, learn: bool = False
    ) -> list[Seen | None]:
        """What each critic makes of the joint rows, where these agents have both in common."""
        if len(group) < 2 or self.minibatches > 1 or len({self.critic_of[i] for i in group}) > 1:
            return [None] * self.heads
        return [critic.see(self.rows(joint, 0), True, learn) for critic in self.critics_of(group[0], target)]

    def before_targets(self, i: int) -> None:
        """What targets need of the whole mini-batch: nothing."""

    def p_loss(self, group: list[int]) -> Span:
        """Minus the value of an agent's fresh action to its own, already updated critic; others' actions as played.

        Of these agents, which share their actor, their critics, or both.
        """
        program, size, actors = self.program, self.actors.shape.size, self._actors_in(group)
        joint = self.redrawn if self.config.others == "current" else self.joint
        with program.span("P loss") as span:
            program.clear(self.actor_gradients, len(actors) * size + len(group) * TAIL)
            span.every_chunk()
            dense = critic_of(self.config) is DenseCritic  # which has nothing in common
            seen = self.seen_together([] if dense else group, joint)
            losses = self.actor_gradients + len(actors) * size
            for place, i in enumerate(group):
                with program.temporary():
                    actor, loss = self.actors[self.actor_of[i]], losses + place * TAIL
                    observation = self.observation(joint, i, self.own(i))
                    outputs = self.outputs(self.actors, observation, i)
                    fresh = self.fresh_action(outputs[-1], i)
                    gradient = self.action_gradient(joint, fresh[0], i, loss, seen)
                    head_gradient = program.scratch(outputs[-1].width)
                    self.forbid(outputs[-1], observation, i, 0.0)  # no penalty
                    self.to_head(head_gradient, gradient, fresh, outputs[-1], i, loss)
                    into = self.actor_gradients + actors.index(actor.number) * size
                    actor.backward(head_gradient, outputs, into)
        return span

    def _actors_in(self, group: list[int]) -> list[int]:
        """Numbers of the actors that these agents have."""
        return sorted({self.actor_of[i] for i in group})

    def fresh_action(self, head: Rows, i: int) -> list[Rows]:
        """An action of the current policy, and what its gradient needs."""
        program, width = self.program, self.spec.action_size
        action, soft = program.scratch(width), program.scratch(width)
        self.sample(action, head, i, self.stream(OWN, i), soft)
        return [action, soft]

    def action_gradient(self, joint: int, action: Rows, i: int, loss: int, seen: list[Seen | None]) -> Rows:
        """The gradient of -Q by the own action; loss -= the mean of Q."""
        program, rows = self.program, self.rows(joint, self.own(i))
        critics = self.critics_of(i)[: self.policy_heads]
        passes = [
            critic.value_of(common or critic.see(rows), action) for critic, common in zip(critics, seen, strict=False)
        ]
        gradients = [program.vector() for _ in critics]
        values = joined.from_iterable(zip(gradients, (outputs[-1] for outputs in passes), strict=True))
        program.policy_gradient(self.weight + i * self.batch, loss, *values)
        by_action = program.scratch(self.spec.action_size)
        for head, (critic, outputs, gradient) in enumerate(zip(critics, passes, gradients, strict=True)):
            with program.temporary():
                below = critic.first_gradient(gradient, outputs)
                program.to_input(by_action, below, self.own_transposed_of(i, head), mask=None, add=head > 0)
        return by_action

    def redraw_actions(self, i: int, m: int) -> Span:
        """The current policy's actions of agent i for mini-batch m, in a copy of its rows."""
        program = self.program
        with program.span("P loss") as span:
            span.every_chunk()
            head = self.outputs(self.actors, self.observation(self.joint, i, m), i)[-1]
            self.sample(self.action, head, i, self.stream(REDRAWN, i, m))
            span.publish()
            program.copy(self.observation(self.redrawn, i, m), self.observation(self.joint, i, m))
            program.copy(self.played(self.redrawn, i, m), self.action, self.presence(self.alive, i, m))
        return span

    def step_critics(self, group: list[int], slot: int) -> Span:
        """The critics that these agents share step, and their targets move."""
        program, size = self.program, self.critics.shape.size
        critics, targets = (self.critics_of(group[0], target) for target in (False, True))
        with program.span("Q loss") as span:
            program.gather(self.summed, slot, self.critic_parts, self.heads * size + len(group) * TAIL)
            for place, i in enumerate(group):
                self.tell(i, self.summed + self.heads * size + place * TAIL, 0)
            for head, critic in enumerate(critics):
                critic.step(self.summed + head * size, self.config, len(group))
            for i in group:
                self.transpose_own(i)
            program.phase("target update")
            for critic, target in zip(critics, targets, strict=True):
                target.move_to(critic, self.config)
        return span

    def step_actors(self, group: list[int], slot: int) -> Span:
        """The actors of these agents step, and their targets move."""
        program, size, actors = self.program, self.actors.shape.size, self._actors_in(group)
        with program.span("P loss") as span:
            tails = self.summed + len(actors) * size
            program.gather(self.summed, slot, self.parts, len(actors) * size + len(group) * TAIL)
            for place, i in enumerate(group):
                for loss in range(1, len(self.losses)):
                    self.tell(i, tails + place * TAIL + loss - 1, loss)
            for place, number in enumerate(actors):
                self.actors[number].step(self.summed + place * size, self.config, self.actor_of.count(number))
            for place, i in enumerate(group):
                self.step_temperature(i, tails + place * TAIL)
            if self.has_target_actors:
                program.phase("target update")
                for number in actors:
                    self.target_actors[number].move_to(self.actors[number], self.config)
        return span

    def step_temperature(self, i: int, tail: int) -> None:
        """MADDPG has no temperature."""

    def transpose_own(self, i: int) -> None:
        """Update the transposed copies of its critics' weights of agent i's own action."""
        for head, critic in enumerate(self.critics_of(i)):
            critic.transpose_own(self.own_transposed_of(i, head))

    def own_transposed_of(self, i: int, head: int) -> int:
        """Where the transposed weights of agent i's own action are."""
        return self.own_transposed + (i * self.heads + head) * self.own_size

    # ---- policies ----------------------------------------------------------------------------------------------------

    def outputs(self, actors: Networks, observation: Rows, i: int) -> list[Rows]:
        """The outputs of all layers of agent i's policy; the last are its head."""
        outputs = actors[self.actor_of[i]].forward(observation)
        self.forbid(outputs[-1], observation, i, MASKED)
        return outputs

    def forbid(self, head: Rows, observation: Rows, i: int, value: float) -> None:
        """Set the logits of masked choices to this value; the mask is the beginning of the observation."""
        if self.spec.masked:
            self.program.forbid(head, observation, self.spec.action_sizes[i], value)

    def sample(self, action: Rows, head: Rows, i: int, stream: int, soft: Rows | None = None) -> None:
        """Actions of a policy, given its head."""
        size = self.spec.action_sizes[i]
        if self.spec.discrete:
            soft = self.program.scratch(self.spec.action_size) if soft is None else soft
            self.program.gumbel_softmax(action, soft, head, size, stream, self.hard)
        else:
            self.program.squash(action, head, size)

    def to_head(self, out: Rows, gradient: Rows, fresh: list[Rows], head: Rows, i: int, loss: int) -> None:
        """The gradient of a policy's head, given that of its action, with the penalty of its logits."""
        action, soft = fresh
        size, weight, penalty = self.spec.action_sizes[i], self.weight + i * self.batch, self.config.logit_penalty
        if self.spec.discrete:
            self.program.choices_backward(out, gradient, soft, head, size, weight, penalty, loss)
        else:
            self.program.squash_backward(out, gradient, action, head, size, weight, penalty, loss)

    # ---- where things are --------------------------------------------------------------------------------------------

    def own(self, i: int) -> int:
        """The mini-batch that agent i learns from."""
        return 0 if self.minibatches == 1 else i

    def stream(self, use: int, i: int, m: int = 0) -> int:
        """The number of a stream of noise."""
        return (use * self.spec.agents + i) * self.minibatches + m

    def rows(self, joint: int, m: int) -> Rows:
        """The joint rows of mini-batch m."""
        return Rows(joint + m * self.batch * self.joint_size, self.joint_size, self.joint_size)

    def observation(self, joint: int, i: int, m: int) -> Rows:
        """What agent i saw in the rows of mini-batch m."""
        width = self.spec.observation_size
        return self.rows(joint, m).columns(i * width, width)

    def own_column(self, i: int) -> int:
        """Where in a joint row the action of agent i begins."""
        return self.spec.agents * self.spec.observation_size + i * self.spec.action_size

    def played(self, joint: int, i: int, m: int) -> Rows:
        """What agent i played in the rows of mini-batch m."""
        return self.rows(joint, m).columns(self.own_column(i), self.spec.action_size)

    def presence(self, alive: int, i: int, m: int) -> int:
        """Who is there, as factors of actions."""
        return alive if alive == NOWHERE else alive + (i * self.minibatches + m) * self.batch

    def rewards(self, i: int) -> Rows:
        """Agent i's own reward, in its own mini-batch."""
        return Rows(self.reward + self.own(i) * self.batch * self.spec.agents + i, self.spec.agents, 1)

    def critics_of(self, i: int, target: bool = False) -> list[Critic]:
        """The critics of agent i."""
        stack, number = self.target_critics if target else self.critics, self.critic_of[i]
        form, sharing = critic_of(self.config), self.critic_groups[number]
        return [form(stack, number * self.heads + head, self.spec, sharing, i) for head in range(self.heads)]

    @property
    def bias_places(self) -> tuple[list[int], list[int]]:
        """Of every joint critic of every agent its number in the stack, and which of its first biases is its own."""
        critics = [critic for i in range(self.spec.agents) for critic in self.critics_of(i)]
        return [critic.number for critic in critics], [critic.member for critic in critics]

    def tell(self, i: int, source: int, place: int) -> None:
        """Copy a loss to where it is read after the update."""
        self.program.copy(Rows(self.loss + place * self.spec.agents + i, 1, 1), Rows(source, 1, 1))
