"""A user's own environments in a module that other processes can import: good ones, and some that are wrong."""

import os
import signal
import time

import gymnasium
import numpy as np
from gymnasium import spaces

from shoal.envs.parallel import episode_seed


class Corridor(gymnasium.Env):
    """Walk to the right end of a corridor; sees a Dict, may be slow."""

    def __init__(self, length=6, seconds=0.0, render_mode=None):
        self.length, self.seconds, self.render_mode = length, seconds, render_mode
        self.observation_space = spaces.Dict(
            place=spaces.Discrete(length), wind=spaces.Box(-9, 9, (2,)), walls=spaces.MultiBinary(2)
        )
        self.action_space = spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = int(self.np_random.integers(self.length - 1)), 0
        return self.seen(), {}

    def seen(self):
        walls = np.int8([self.place == 0, self.place == self.length - 1])
        return {"place": self.place, "wind": self.np_random.normal(size=2).astype(np.float32), "walls": walls}

    def step(self, action):
        time.sleep(self.seconds)
        self.time += 1
        self.place = min(max(self.place + int(action) - 1, 0), self.length - 1)
        return self.seen(), float(self.place - self.time), self.place == self.length - 1, self.time == 20, {}

    def render(self):
        return np.full((2, self.length, 3), self.place, np.uint8)


class Masked:
    """Two agents that may play only what their masks allow, in Dict observations or in infos; others raise."""

    def __init__(self, where="observation", several=(), boxes=(), length=6):
        self.where, self.length, self.possible_agents, self.agents = where, length, ["a_0", "a_1"], []
        kinds = {name: spaces.Discrete(3 + i, start=i) for i, name in enumerate(self.possible_agents)}
        kinds |= {name: spaces.MultiDiscrete([4, 50]) for name in several}
        self.kinds = kinds | {name: spaces.Box(-2.0, 3.0, (2,)) for name in boxes}
        self.mask = lambda name, sizes: np.concatenate([self.drawn(size) for size in sizes])

    def drawn(self, size):
        mask = (self.random.random(size) < 0.4).astype(np.int8)
        mask[self.random.integers(size)] = 1
        return mask

    def sizes(self, name):
        kind = self.kinds[name]
        return kind.nvec if isinstance(kind, spaces.MultiDiscrete) else [getattr(kind, "n", 1)]

    def action_space(self, name):
        return self.kinds[name]

    def observation_space(self, name):
        seen = spaces.Box(-1, 1, (2,))
        mask = spaces.Box(0, 1, (int(sum(self.sizes(name))),), np.int8)
        boxed = isinstance(self.kinds[name], spaces.Box)
        return seen if boxed or self.where != "observation" else spaces.Dict(observation=seen, action_mask=mask)

    def seen(self):
        self.masks = {name: self.mask(name, self.sizes(name)) for name in self.possible_agents}
        plain = {name: self.random.uniform(-1, 1, 2).astype(np.float32) for name in self.masks}
        infos = {name: {"action_mask": mask} for name, mask in self.masks.items()}
        if self.where != "observation":
            return plain, infos if self.where == "infos" else {}
        boxed = [name for name in plain if isinstance(self.kinds[name], spaces.Box)]
        return {name: {"observation": plain[name], **infos[name]} for name in plain} | {n: plain[n] for n in boxed}, {}

    def reset(self, seed=None, options=None):
        self.random, self.time, self.agents = np.random.default_rng(seed), 0, list(self.possible_agents)
        return self.seen()

    def step(self, actions):
        for name, action in actions.items():
            assert self.kinds[name].contains(action)
            entries = np.ravel(action - getattr(self.kinds[name], "start", 0))
            if isinstance(self.kinds[name], spaces.Box):
                continue
            for entry, mask in zip(entries, np.split(self.masks[name], np.cumsum(self.sizes(name))[:-1]), strict=True):
                if not mask[entry]:
                    raise ValueError(f"{name} must not play {action}")
        self.time += 1
        over = self.time == self.length
        observations, infos = self.seen()
        rewards, ended = (dict.fromkeys(self.agents, value) for value in (float(entries[0]), False))
        self.agents = [] if over else self.agents
        return observations, rewards, ended, dict.fromkeys(rewards, over), infos

    def render(self):
        return None

    def close(self):
        pass


class Nested:
    class Inner(Corridor):
        pass


class Wanderer(Corridor):
    """Changes the working directory when it is made, and with every step."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        os.chdir("/")

    def step(self, action):
        os.chdir("/")
        return super().step(action)


class Rich(Corridor):
    """Pays very much."""

    def step(self, action):
        seen, reward, *ended = super().step(action)
        return seen, reward * 1e30, *ended


def make_corridor(length=4):
    return Corridor(length)


def make_team():
    from relay import STAY, Relay

    return Relay(STAY)


class CartPole(Corridor):
    """Has the name of one of Gymnasium's, without its version."""


class Registered(Corridor):
    """Registered under its own name with a longer corridor: the ID wins."""


gymnasium.register("Registered", Registered, kwargs={"length": 9}, max_episode_steps=7)
gymnasium.register("Versions-v0", Corridor, kwargs={"length": 3}, max_episode_steps=7)
gymnasium.register("Versions-v1", Corridor, kwargs={"length": 9}, max_episode_steps=7)


PICTURES = {
    "none": None,
    "text": "a door",
    "list": [np.zeros((4, 6, 3), np.uint8)],
    "float": np.zeros((4, 6, 3)),
    "grey": np.zeros((4, 6), np.uint8),
    "alpha": np.zeros((4, 6, 4), np.uint8),
    "empty": np.zeros((0, 0, 3), np.uint8),
    "whole": np.array([[[0, 128, 255]]]),
}


class Picture(Corridor):
    """Draws what a picture may look like, or what it may not."""

    def __init__(self, kind):
        super().__init__(render_mode="rgb_array")
        self.kind = kind

    def render(self):
        return PICTURES[self.kind]


class Fatal(Corridor):
    """Fails at the third step of its `only`-th copy, by an episode that is told from the others by its seed."""

    def __init__(self, how="kill", only=0, **keywords):
        super().__init__(99, **keywords)
        self.how, self.fatal_seed = how, episode_seed(0, only, 0)

    def reset(self, seed=None, options=None):
        self.fatal = seed == self.fatal_seed
        return super().reset(seed=seed)

    def step(self, action):
        if not (self.fatal and self.time == 2):
            return super().step(action)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "nan":
            return {**self.seen(), "wind": [np.nan, 0]}, 0.0, False, False, {}
        if self.how == "exit":
            raise SystemExit(0)
        if self.how == "end":
            os._exit(2)
        if self.how == "memory":
            raise MemoryError
        if self.how == "unwritable":
            raise RuntimeError("\udcff is no character")
        if self.how == "ask":
            signal.alarm(5)  # else it would wait for an answer forever
            input()
        raise RuntimeError("a wheel came off")


class Sticky(Corridor):
    """Cannot be closed."""

    def __init__(self, how="exit", **keywords):
        super().__init__(**keywords)
        self.how = how

    def close(self):
        if self.how == "exit":
            raise SystemExit(0)
        raise RuntimeError("the door is stuck")


class Unseeded(Corridor):
    def reset(self, seed=None, options=None):
        return super().reset(seed=None)


class NoSpaces(gymnasium.Env):
    pass


class OldSpaces(Corridor):
    def __init__(self):
        self.observation_space, self.action_space = spaces.Discrete(2), "left or right"


class OldReset(Corridor):
    def reset(self, seed=None, options=None):
        return super().reset(seed)[0]


class OldStep(Corridor):
    def step(self, action):
        return super().step(action)[:4]


class Refuses:
    possible_agents = ("a",)

    def __init__(self):
        raise ValueError("no licence")


class Exits(Corridor):
    def __init__(self):
        raise SystemExit(3)


class NoEnvironment:
    pass


class Unlike(Corridor):
    """Has more wind in every process; it looks the same otherwise."""

    def __init__(self):
        super().__init__()
        self.observation_space["wind"] = spaces.Box(-os.getpid(), os.getpid(), (2,))


NOT_CALLABLE = 7
