"""MADDPG and MASAC written plainly, one agent after the other: the oracle for the stacked update.

Nothing here is shared with the engine: networks are lists of matrices an agent, gradients are autograd's, Adam and
clipping are spelled out. Noise comes in as arrays. Everything is of the batch's own precision.
"""

import contextlib
import itertools
import math

import numpy as np
import torch

from shoal.networks.pooled import PooledCritics

B1, B2, EPS = 0.9, 0.999, 1e-8


class Net:
    """A multilayer perceptron as a list of weights and biases, with its own Adam."""

    def __init__(self, layers):
        self.p = [t.detach().clone().requires_grad_() for pair in layers for t in pair]
        self.m = [torch.zeros_like(t) for t in self.p]
        self.v = [torch.zeros_like(t) for t in self.p]
        self.t = 0

    def __call__(self, x, place=0):
        """`place`: whose row of the first bias, in a network that several agents share."""
        for k in range(0, len(self.p), 2):
            bias = self.p[k + 1]
            x = x @ self.p[k] + (bias[place] if bias.dim() == 2 else bias)
            if k + 2 < len(self.p):
                x = torch.relu(x)
        return x

    def descend(self, loss, rate, clip, by):
        grads = [g.detach() for g in torch.autograd.grad(loss, self.p)]
        whole = math.sqrt(sum(float((g.double() ** 2).sum()) for g in grads))
        self.t += 1
        for k, g in enumerate(grads):
            norm = whole if by == "network" else float(g.double().norm())
            if clip > 0 and norm > clip:
                g = g * (clip / norm)
            self.m[k] = B1 * self.m[k] + (1 - B1) * g
            self.v[k] = B2 * self.v[k] + (1 - B2) * g * g
            m, v = self.m[k] / (1 - B1**self.t), self.v[k] / (1 - B2**self.t)
            self.p[k] = (self.p[k].detach() - rate * m / (v.sqrt() + EPS)).requires_grad_()

    def follow(self, online, tau):
        self.p = [(1 - tau) * a.detach() + tau * b.detach() for a, b in zip(self.p, online.p, strict=True)]


class PooledNet(Net):
    """A critic over the embeddings of all agents: its own agent's, and the mean of all."""

    def __init__(self, first, bias, rest, spec):
        super().__init__([(first, bias), *rest])
        self.spec = spec

    def __call__(self, x, place=0):
        """`place`: the agent whose Q value it is."""
        n, o, a = self.spec.agents, self.spec.observation_size, self.spec.action_size
        embeddings = []
        for j, kind in enumerate(self.spec.kinds):
            own = torch.cat([x[:, j * o : (j + 1) * o], x[:, n * o + j * a : n * o + (j + 1) * a]], 1)
            embeddings.append(torch.relu(own @ self.p[0][kind] + self.p[1][kind, 0]))
        x = torch.cat([embeddings[place], sum(embeddings) / n], 1)
        for k in range(2, len(self.p), 2):
            x = x @ self.p[k] + self.p[k + 1]
            if k + 2 < len(self.p):
                x = torch.relu(x)
        return x


def actor_nets(actors):
    """One Net per agent, or per kind of agent, out of stacked actors."""
    return [
        Net([(w[i], b[i, 0]) for w, b in zip(actors.weights, actors.biases, strict=True)])
        for i in range(len(actors.weights[0]))
    ]


def critic_nets(critics):
    """Nets by agent (or kind) and head out of stacked critics; the first bias has a row for each member."""
    nets = []
    if isinstance(critics, PooledCritics):
        for c, first in enumerate(critics.first):
            rest = [(w[c], b[c, 0]) for w, b in zip(critics.rest.weights, critics.rest.biases, strict=True)]
            nets.append(PooledNet(first, critics.first_bias[c], rest, critics.spec))
        return [nets[c : c + critics.heads] for c in range(0, len(nets), critics.heads)]
    for number in range(critics.first.shape[1] // critics.heads):
        members = [i for i, owner in enumerate(critics.owner.tolist()) if owner == number]
        row = []
        for k in range(critics.heads):
            c = number * critics.heads + k
            rest = [(w[c], b[c, 0]) for w, b in zip(critics.rest.weights, critics.rest.biases, strict=True)]
            own = torch.stack([critics.first_bias[i * critics.heads + k, 0] for i in members])
            row.append(Net([(critics.first[:, c], own), *rest]))
        nets.append(row)
    return nets


class Plain:
    """Both algorithms on numpy batches (M, B, ...), M = 1 shared or N independent."""

    def __init__(self, team):
        self.spec, self.c = team.spec, team.config
        self.masac = self.c.algorithm == "masac"
        self.tf2 = self.masac and self.c.variant == "tf2"
        self.n, self.o, self.a = self.spec.agents, self.spec.observation_size, self.spec.action_size
        # each agent's networks, which may be another agent's, too; and whose row of the first bias it has
        self.actors, self.target_actors = (self.of_agents(actor_nets(team.actors)) for _ in range(2))
        self.critics, self.target_critics = (self.of_agents(critic_nets(team.critics)) for _ in range(2))
        self.place = [self.critics[:i].count(self.critics[i]) for i in range(self.n)]
        if self.c.critic == "pooled":
            self.place = list(range(self.n))
        self.log_alpha = [math.log(max(self.c.entropy, 1e-8))] * self.n
        self.alpha_adam = [[0.0, 0.0] for _ in range(self.n)]

    def of_agents(self, nets):
        return [nets[k] for k in self.spec.kinds] if len(nets) < self.n else nets

    def descend(self, each):
        """Step down the sum of all losses of each network, given as (network, loss) pairs."""
        for net in dict.fromkeys(net for net, _ in each):
            losses = [loss for other, loss in each if other is net]
            net.descend(sum(losses), self.c.learning_rate, self.c.clip * len(losses), self.c.clip_by)

    def alpha(self, i):
        return math.exp(self.log_alpha[i]) if self.c.learn_entropy else self.c.entropy

    # one agent's policy on its rows; `noise` (B, A)
    def act(self, net, obs, i, noise):
        size = self.spec.action_sizes[i]
        head = net(obs)
        action = obs.new_zeros(len(obs), self.a)
        entropy = None
        if self.spec.discrete:
            logits = head[:, :size]
            soft = torch.softmax(logits + noise[:, :size], -1)
            hard = self.c.gumbel == "straight-through" or (self.c.gumbel == "auto" and not self.spec.soft_actions)
            if hard:
                one = torch.nn.functional.one_hot(soft.argmax(-1), size).to(soft.dtype)
                soft = one + (soft - soft.detach())
            action = torch.cat([soft, action[:, size:]], 1)
            p = torch.softmax(logits, -1)
            entropy = -(p * torch.log(p)).sum(-1)
            penalty = (logits**2).mean(-1)
        elif self.masac:
            mean, s = head[:, :size], head[:, self.a : self.a + size]
            log_std = -5 + 3.5 * (torch.tanh(s) + 1)
            normal = torch.distributions.Normal(mean, log_std.exp())
            x = mean + log_std.exp() * noise[:, :size]
            log_slope = -2 * torch.log(torch.cosh(x.double())).to(x.dtype)  # of tanh, whose slope is 1 / cosh^2
            entropy = -(normal.log_prob(x) - log_slope).sum(-1)
            action = torch.cat([torch.tanh(x), action[:, size:]], 1)
            penalty = None
        else:
            action = torch.cat([torch.tanh(head[:, :size]), action[:, size:]], 1)
            penalty = (head[:, :size] ** 2).mean(-1)
        return action, entropy, penalty

    def update(self, batch, next_noise, online_noise, current_noise, own_noise):
        """`next_noise`, `current_noise` (N, M*B, A); `own_noise`, `online_noise` (N, B, A); zeros if unused."""
        n, o = self.n, self.o
        rows = batch.joint.shape[1]
        joints, next_joints = torch.from_numpy(batch.joint.copy()), torch.from_numpy(batch.next_joint.copy())
        alive, ended = torch.from_numpy(batch.alive.copy()), torch.from_numpy(batch.terminated.copy())
        rewards = torch.from_numpy(batch.reward.copy())
        which = [i if len(joints) > 1 else 0 for i in range(n)]
        losses = []
        targets = []
        for i in range(n):
            m = which[i]
            weight = alive[m, :, i].to(joints.dtype)
            weight = weight / weight.sum().clamp_min(1)
            obs = next_joints[m][:, : n * o]
            actions = []
            for j in range(n):
                nets = self.target_actors if (not self.masac or self.tf2) else self.actors
                noise = next_noise[j, m * rows : (m + 1) * rows]
                action, entropy_j, _ = self.act(nets[j], obs[:, j * o : (j + 1) * o], j, noise)
                present = (alive[m, :, j] & ~ended[m, :, j]).to(joints.dtype)[:, None]
                actions.append(action.detach() * present)
                if j == i:
                    entropy = entropy_j
            x = torch.cat([obs, *actions], 1)
            q = torch.stack([net(x, self.place[i])[:, 0] for net in self.target_critics[i]]).min(0).values.detach()
            if self.masac:
                if self.tf2:
                    _, entropy, _ = self.act(self.actors[i], obs[:, i * o : (i + 1) * o], i, online_noise[i])
                    entropy = (weight * entropy).sum()
                q = q + self.alpha(i) * entropy.detach()
            y = rewards[m, :, i] + self.c.discount * (~ended[m, :, i]).to(q.dtype) * q
            targets.append((y, weight))
        steps = []
        for i in range(n):
            m = which[i]
            y, weight = targets[i]
            for net in self.critics[i]:
                loss = (weight * (net(joints[m], self.place[i])[:, 0] - y) ** 2).sum()
                losses.append(float(loss.detach()))
                steps.append((net, loss))
        self.descend(steps)
        fresh = [
            self.fresh_actor_loss(
                i, joints[which[i]], targets[i][1], alive[which[i]], which[i], rows, current_noise, own_noise
            )
            for i in range(n)
        ]
        self.descend([(self.actors[i], loss) for i, (loss, _) in enumerate(fresh)])
        if self.c.learn_entropy and self.masac:
            for i, (_, excess) in enumerate(fresh):
                self.step_alpha(i, float(excess))
        for target, net in dict(zip(self.target_actors, self.actors, strict=True)).items():
            target.follow(net, self.c.tau)
        online = itertools.chain.from_iterable(self.critics)
        for target, net in dict(zip(itertools.chain.from_iterable(self.target_critics), online, strict=True)).items():
            target.follow(net, self.c.tau)
        return losses

    def fresh_actor_loss(self, i, joint, weight, alive, m, rows, current_noise, own_noise):
        n, o, a = self.n, self.o, self.a
        obs = joint[:, : n * o]
        own, entropy, penalty = self.act(self.actors[i], obs[:, i * o : (i + 1) * o], i, own_noise[i])
        actions = []
        for j in range(n):
            if j == i:
                actions.append(own)
            elif self.c.others == "current":
                other, _, _ = self.act(
                    self.actors[j], obs[:, j * o : (j + 1) * o], j, current_noise[j, m * rows : (m + 1) * rows]
                )
                actions.append(other.detach() * alive[:, j].to(joint.dtype)[:, None])
            else:
                actions.append(joint[:, n * o + j * a : n * o + (j + 1) * a])
        x = torch.cat([obs, *actions], 1)
        q = torch.stack([net(x, self.place[i])[:, 0] for net in self.critics[i]])
        q = q[0] if self.tf2 or not self.masac else q.min(0).values
        if self.masac:
            value = -q - self.alpha(i) * entropy
        else:
            value = -q + self.c.logit_penalty * penalty
        return (weight * value).sum(), None if entropy is None else (weight * (entropy - self.want(i))).sum().detach()

    def want(self, i):
        """The entropy that the temperature is to hold."""
        size = self.spec.action_sizes[i]
        if self.c.target_entropy is not None:
            return self.c.target_entropy
        return 0.5 * math.log(size) if self.spec.discrete else -size

    def step_alpha(self, i, g):
        t = self.actors[i].t
        m, v = self.alpha_adam[i]
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g * g
        self.alpha_adam[i] = [m, v]
        self.log_alpha[i] -= self.c.learning_rate * (m / (1 - B1**t)) / (math.sqrt(v / (1 - B2**t)) + EPS)


def numpy_noise(rng, kind, shape, precision=np.float32):
    """Noise of the kind that the policy asks for."""
    values = rng.gumbel(size=shape) if kind == "gumbel" else rng.normal(size=shape)
    return torch.from_numpy(np.asarray(values, precision))


@contextlib.contextmanager
def precision_of_networks(precision):
    """Networks that are made in here are of this precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if precision is np.float64 else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
