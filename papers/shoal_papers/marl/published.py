"""Published returns on simple_spread and simple_tag, and what they would be under the rules of our worlds.

Every figure was read in the source that its row names; what was read off a picture is marked. With N agents, episodes
of 25 steps and the same trajectory, s being the mean return per agent under mpe2's rules (local ratio 0.5) and R the
shared return of every agent under OpenAI's:

    R = 2 N s − 25 N        s = (R + 25 N) / 2 N

PettingZoo before 1.22.4 counted an agent as touching itself: its s is 12.5 lower. The formulas leave out that mpe2
moves agents before it changes their velocity: its first step moves nobody, and its last action has no effect.
"""

from dataclasses import dataclass

LENGTH = 25
OPENAI, MPE2, OLD = "OpenAI", "mpe2", "PettingZoo < 1.22.4"
NEAR = "OpenAI, landmarks within ±0.8"
SPREAD, TAG = "simple_spread", "simple_tag"


@dataclass(frozen=True)
class Published:
    """A return as somebody has published it."""

    source: str
    algorithm: str
    value: float
    steps: str
    """Env steps of the training."""
    played: str
    """Which policy was played, and over what the value is."""
    where: str
    """Document, and table or issue."""
    interval: float | None = None
    """Half-width of its interval, as published."""
    world: str = SPREAD
    rules: str = OPENAI
    agents: int = 3
    summed: bool = False
    """The value is a sum over agents, not the return of one."""
    read_off: bool = False
    """Read off a picture."""
    note: str = ""

    @property
    def per_agent(self) -> float:
        """The value per agent, under its own rules."""
        return self.value / self.agents if self.summed else self.value

    @property
    def openai(self) -> float:
        """Return per agent under OpenAI's rules."""
        if self.world == TAG or self.rules in (OPENAI, NEAR):
            return self.per_agent
        return to_openai(self.mpe2, self.agents)

    @property
    def mpe2(self) -> float:
        """Mean return per agent under mpe2's rules."""
        if self.world == TAG or self.rules == MPE2:
            return self.per_agent
        if self.rules == OLD:
            return self.per_agent + LENGTH / 2
        return to_mpe2(self.per_agent, self.agents)


def to_openai(mpe2: float, agents: int) -> float:
    """The return of every agent under OpenAI's rules."""
    return 2 * agents * mpe2 - LENGTH * agents


def to_mpe2(openai: float, agents: int) -> float:
    """The mean return per agent under mpe2's rules."""
    return (openai + LENGTH * agents) / (2 * agents)


EPYMARL = "arXiv 2006.07869, Table 3, transcribed; uoe-agents/epymarl #29"
BEST = "best evaluation of the training, 5 seeds"
NOISY = "training episodes, noisy"
CURVE = "wsjeon/maddpg-rllib, plots/openai_maddpg"


def epymarl(algorithm: str, value: float, interval: float, steps: str) -> Published:
    """A row of EPyMARL's table."""
    return Published("EPyMARL", algorithm, value, steps, BEST, EPYMARL, interval)


PUBLISHED = [
    Published("openai/maddpg", "MADDPG", -165, "0.25M", f"{NOISY}, 10 seeds", CURVE, 3, read_off=True),
    Published("openai/maddpg", "MADDPG", -416, "1.5M", f"{NOISY}, a user's run", "marwanihab/RL_Testing_Noise_ASRN, "
              "README", summed=True),
    Published("tf2multiagentrl", "MATD3", -531, "0.2M", f"{NOISY}, one run", "JohannesAck/tf2multiagentrl #5",
              summed=True),
    epymarl("QMIX", -126.62, 2.96, "2M"),
    epymarl("MAA2C", -129.90, 1.63, "20M"),
    epymarl("VDN", -131.03, 1.85, "2M"),
    epymarl("IQL", -132.63, 2.22, "2M"),
    epymarl("MAPPO", -133.54, 3.08, "20M"),
    epymarl("IPPO", -133.86, 3.67, "20M"),
    epymarl("IA2C", -134.43, 1.15, "20M"),
    epymarl("MADDPG", -141.70, 1.74, "2M"),
    epymarl("COMA", -204.31, 6.30, "20M"),
    Published("MAPPO's authors' code", "MAPPO", -120, "20M", f"{NOISY}, a user's run", "marlbenchmark/on-policy #49; "
              "envs/mpe/scenarios/simple_spread.py", rules=NEAR, read_off=True),
    Published("Mava", "MADDPG", -25, "3M, 24 h", "evaluation, one run", "instadeepai/Mava #315", rules=OLD,
              note="self-collisions inferred from the date"),
    Published("Mava", "MAD4PG", -20, "", "evaluation, one run", "instadeepai/Mava #315", rules=OLD,
              note="self-collisions inferred from the date"),
    Published("communication study", "MAPPO", -58.93, "0.8M", "5 seeds", "a repository's «Comparison with verified "
              "published benchmarks», section 4", 1.37, rules=MPE2, summed=True),
    Published("communication study", "MAPPO", -225.04, "0.8M", "5 seeds", "the same", 13.93, rules=MPE2, agents=6,
              summed=True),
    Published("communication study", "MAPPO", -716.98, "1.5M", "3 seeds", "the same", 4.57, rules=MPE2, agents=12,
              summed=True),
    Published("openai/maddpg", "MADDPG", 27, "0.15M", f"{NOISY}, 10 seeds, highest point", CURVE, world=TAG,
              read_off=True),
    Published("RLlib", "MADDPG", 21, "0.18M", f"{NOISY}, highest point", "wsjeon/maddpg-rllib, plots/rllib_maddpg",
              world=TAG, read_off=True),
    Published("maddpg-pettingzoo-pytorch", "MADDPG", 27.5, "0.2 to 0.3M", f"{NOISY}, highest point, 25 to 30",
              "Git-123-Hub/maddpg-pettingzoo-pytorch, README", world=TAG, rules=OLD, read_off=True),
]  # fmt: skip
"""EPyMARL's table was read in a transcription of it, whose repository we cannot name; that its returns are per agent,
and its random team's (−700 summed), in its issue. We found no numbers of MAPPO's paper and JaxMARL, which have
pictures, nor of BenchMARL, whose results are for VMAS."""
