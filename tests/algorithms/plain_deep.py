"""D4PG and DQN written plainly, one agent and one row after the other where that says most: the oracle."""

import torch

from shoal.replay import Returns
from tests.algorithms.plain import Net, actor_nets, choices_of, critic_nets


class NormedNet(Net):
    """A network whose first hidden layer is normalised and squashed; gain and offset are its last parameters."""

    def __call__(self, x, place=0):
        layers, (gain, offset) = self.p[:-2], self.p[-2:]
        for k in range(0, len(layers), 2):
            x = x @ layers[k] + (layers[k + 1] if k else layers[k + 1][place])
            if k == 0:
                mean = x.mean(-1, keepdim=True)
                variance = ((x - mean) ** 2).mean(-1, keepdim=True)
                x = torch.tanh((x - mean) / torch.sqrt(variance + 1e-5) * gain + offset)
            elif k + 2 < len(layers):
                x = torch.relu(x)
        return x


def atom_critic_nets(critics):
    """One Net per agent, or per kind of agent, out of stacked critics."""
    nets = [net for (net,) in critic_nets(critics)]
    if critics.norm is None:
        return nets
    pairs = [list(zip(net.p[::2], net.p[1::2], strict=True)) for net in nets]
    norms = zip(critics.norm.gain[:, 0], critics.norm.offset[:, 0], strict=True)
    return [NormedNet([*layers, norm]) for layers, norm in zip(pairs, norms, strict=True)]


def plain_projection(probability, reward, discount, atoms):
    """One row's distribution of reward + discount · Z on the atoms, by a loop over them; works on fractions, too."""
    low, high, step = atoms[0], atoms[-1], (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    projected = [0 * probability[0]] * len(atoms)
    for p, z in zip(probability, atoms, strict=True):
        moved = min(max(reward + discount * z, low), high)
        for k, atom in enumerate(atoms):
            nearness = 1 - abs(moved - atom) / step
            if nearness > 0:
                projected[k] = projected[k] + p * nearness
    return projected


class PlainTeam:
    """What both have in common; batches are (M, B, ...), M = 1 shared or N independent."""

    def __init__(self, team):
        self.spec, self.c = team.spec, team.config
        self.n, self.o, self.a = self.spec.agents, self.spec.observation_size, self.spec.action_size
        self.actors, self.target_actors = (self.of_agents(actor_nets(team.actors)) for _ in range(2))
        self.updates = 0

    def rows(self, batch):
        """Per agent: its joint rows, next joint rows, rewards, bootstraps and weights."""
        found = []
        for i in range(self.n):
            m = i if len(batch.joint) > 1 else 0
            dtype = torch.from_numpy(batch.joint).dtype
            steps = torch.ones(batch.joint.shape[1], dtype=dtype)
            if isinstance(batch, Returns):
                steps = torch.from_numpy(batch.steps[m]).to(dtype)
            goes_on = torch.from_numpy(~batch.terminated[m, :, i]).to(dtype)
            weight = torch.from_numpy(batch.alive[m, :, i]).to(dtype)
            found.append(
                (
                    torch.from_numpy(batch.joint[m].copy()),
                    torch.from_numpy(batch.next_joint[m].copy()),
                    torch.from_numpy(batch.reward[m, :, i].copy()),
                    self.c.discount**steps * goes_on,
                    weight / weight.sum().clamp_min(1),
                )
            )
        return found

    def own(self, joint, i):
        """What agent i saw."""
        return joint[:, i * self.o : (i + 1) * self.o]

    def of_agents(self, nets):
        """Each agent's network, which may be another's, too."""
        return [nets[k] for k in self.spec.kinds] if len(nets) < self.n else nets

    def step(self, nets, losses):
        """Step down the sum of all losses of each network."""
        for net in dict.fromkeys(nets):
            own = [loss for other, loss in zip(nets, losses, strict=True) if other is net]
            net.descend(sum(own), self.c.learning_rate, self.c.clip * len(own), self.c.clip_by)

    def follow(self, pairs):
        self.updates += 1
        if self.updates % self.c.target_period == 0:
            for target, online in dict(pairs).items():
                target.follow(online, self.c.tau)


class PlainD4PG(PlainTeam):
    """One agent after the other."""

    def __init__(self, team):
        super().__init__(team)
        self.critics, self.target_critics = (self.of_agents(atom_critic_nets(team.critics)) for _ in range(2))
        self.place = [self.critics[:i].count(self.critics[i]) for i in range(self.n)]
        self.atoms = [
            self.c.v_min + k * (self.c.v_max - self.c.v_min) / (self.c.atoms - 1) for k in range(self.c.atoms)
        ]

    def act(self, net, obs, i, noise):
        size = self.spec.action_sizes[i]
        head = net(obs)[:, :size]
        parts, _, square = choices_of(self.spec, i, obs, head, noise, hard=False)
        mean = head[:, sum(part.shape[1] for part in parts) :]
        padding = obs.new_zeros(len(obs), self.a - size)
        return torch.cat([*parts, torch.tanh(mean), padding], 1), (square + (mean**2).sum(-1)) / size

    def update(self, batch, next_noise, own_noise):
        n, o, a = self.n, self.o, self.a
        rows = batch.joint.shape[1]
        gathered = self.rows(batch)
        stays = batch.next_alive if isinstance(batch, Returns) else batch.alive & ~batch.terminated
        targets = []
        for i, (joint, next_joint, reward, bootstrap, _) in enumerate(gathered):
            m = i if len(batch.joint) > 1 else 0
            actions = []
            for j in range(n):
                noise = next_noise[j, m * rows : (m + 1) * rows]
                action, _ = self.act(self.target_actors[j], self.own(next_joint, j), j, noise)
                actions.append(action.detach() * torch.from_numpy(stays[m, :, j]).to(joint.dtype)[:, None])
            x = torch.cat([next_joint[:, : n * o], *actions], 1)
            p = torch.softmax(self.target_critics[i](x, self.place[i]), -1).detach()
            projected = [
                plain_projection(p[b].tolist(), float(reward[b]), float(bootstrap[b]), self.atoms) for b in range(rows)
            ]
            targets.append(torch.tensor(projected, dtype=joint.dtype))
        losses = []
        for i, (joint, _, _, _, weight) in enumerate(gathered):
            cross_entropy = -(targets[i] * torch.log_softmax(self.critics[i](joint, self.place[i]), -1)).sum(-1)
            losses.append((weight * cross_entropy).sum())
        self.step(self.critics, losses)
        losses = []
        for i, (joint, _, _, _, weight) in enumerate(gathered):
            own, penalty = self.act(self.actors[i], self.own(joint, i), i, own_noise[i])
            played = [joint[:, n * o + j * a : n * o + (j + 1) * a] for j in range(n)]
            x = torch.cat([joint[:, : n * o], *[own if j == i else played[j] for j in range(n)]], 1)
            q = (torch.softmax(self.critics[i](x, self.place[i]), -1) * torch.tensor(self.atoms, dtype=x.dtype)).sum(-1)
            losses.append((weight * (self.c.logit_penalty * penalty - q)).sum())
        self.step(self.actors, losses)
        self.follow(
            [*zip(self.target_actors, self.actors, strict=True), *zip(self.target_critics, self.critics, strict=True)]
        )


class PlainDQN(PlainTeam):
    """One agent after the other, and of a row only what is needed."""

    def update(self, batch):
        losses = []
        for i, (joint, next_joint, reward, bootstrap, weight) in enumerate(self.rows(batch)):
            size = self.spec.action_sizes[i]
            loss = 0.0
            for b in range(len(joint)):
                after = self.own(next_joint, i)[b]
                legal = [a for a in range(size) if not self.spec.masked or after[a] > 0] or range(size)
                values = self.target_actors[i](after).detach()[:size]
                chooser = self.actors[i](after).detach() if self.c.double else values
                best = max(legal, key=lambda a, chooser=chooser: float(chooser[a]))
                target = reward[b] + bootstrap[b] * values[best]
                first = self.n * self.o + i * self.a
                played = int(joint[b, first : first + size].argmax())
                error = (self.actors[i](self.own(joint, i)[b])[played] - target).abs()
                loss = loss + weight[b] * (0.5 * error**2 if error < 1 else error - 0.5)
            losses.append(loss)
        self.step(self.actors, losses)
        self.follow(zip(self.target_actors, self.actors, strict=True))
