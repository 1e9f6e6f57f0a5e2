"""What a profile measures, checked before torch and numba are imported to measure it.

A cell is one combination of world, number of agents, algorithm, sampler and implementation.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import UserError, check_choice, check_range
from shoal.lazy import papers
from shoal.system.processors import check_threads

ENVS = ("predator-prey", "cooperative-navigation")
ALGORITHMS = ("maddpg", "masac")
IMPLEMENTATIONS = ("engine", "reference")


@dataclass(frozen=True)
class Cell:
    """What is measured."""

    env: str
    agents: int
    algorithm: str
    sampler: str
    implementation: str


@dataclass(frozen=True)
class ProfileOptions:
    """Options of a profile: which cells are measured, and how long; `shoal profile` has the same."""

    agents: tuple[int, ...] = (3, 6, 12)
    """Comma-separated numbers of agents."""
    algorithm: tuple[str, ...] = ("maddpg",)
    """maddpg, masac or both."""
    env: tuple[str, ...] = ("predator-prey",)
    """predator-prey, cooperative-navigation or both."""
    sampler: tuple[str, ...] = ("uniform", "neighbor")
    """uniform, neighbor; the reference also has neighbor-v1 and neighbor-v2 (its neighbor is v2)."""
    implementation: tuple[str, ...] = IMPLEMENTATIONS
    """engine, reference or both: they take turns, so that noise of the machine affects both alike."""
    ring: int | None = None
    """Replay capacity in transitions; None: 1,000,000, or fewer if they do not fit into memory."""
    seconds: float = 5.0
    """Seconds per combination; combinations with too few rounds are marked as cut short."""
    threads: int | None = None
    """CPU threads; None: as `shoal train` chooses them."""
    caches: tuple[str, ...] = ()
    """Cache sizes of the cache model, e.g. L2=1M/16,L3=32M/16,dtlb=64/4; empty: this machine's."""


@dataclass(frozen=True)
class Sweep(ProfileOptions):
    """Everything that determines a profile."""

    settings: dict[str, Any] = field(default_factory=dict)  # of training, where they are not the papers'
    misses: bool = True  # run the samplers through the cache model
    memory: bool = True  # measure what each implementation takes

    def check(self) -> None:
        """Raise a `UserError` for the first thing that cannot be measured."""
        words = {
            "env": ENVS,
            "algorithm": ALGORITHMS,
            "sampler": papers("reference").SAMPLERS,
            "implementation": IMPLEMENTATIONS,
        }
        for what, choices in words.items():
            for value in getattr(self, what):
                check_choice(what, value, choices)
        for what in ("agents", *words):
            given = getattr(self, what)
            if not given or len(set(given)) < len(given):
                problem = "names something twice" if given else "is empty"
                raise UserError(f"`{what}` {problem}, but must be a list of different values, e.g. 3,12.")
        for agents in self.agents:
            check_range("agents", agents, 1, 1024)
        if self.ring is not None:
            check_range("ring", self.ring, 1024, 2**32)
        check_range("seconds", self.seconds, 0.05, 86_400)
        if self.threads is not None:
            check_threads(self.threads)
        if not self.cells():
            raise UserError(f"The engine has no sampler {', '.join(self.sampler)}; profile neighbor instead.")
        self.geometry()

    def geometry(self) -> Any:
        """The machine of the cache model."""
        return papers("caches.geometry").modelled_geometry(self.caches)

    def cells(self) -> list[Cell]:
        """All combinations that exist: only the reference has the papers' two versions of neighbour sampling."""
        twice = "neighbor" if "neighbor-v2" in self.sampler else ""  # which is the reference's neighbor
        absent = {"engine": ("neighbor-v1", "neighbor-v2"), "reference": (twice,)}
        everything = itertools.product(self.env, self.agents, self.algorithm, self.sampler, self.implementation)
        return [cell for cell in itertools.starmap(Cell, everything) if cell.sampler not in absent[cell.implementation]]

    def implementations(self) -> list[str]:
        """The implementations that have cells."""
        return sorted({cell.implementation for cell in self.cells()})

    @property
    def total_seconds(self) -> float:
        """About how long the clock will run; filling the rings comes on top."""
        return self.seconds * len(self.cells())
