"""`shoal profile`: time, misses and memory of every requested cell, as records for tables, JSON and pictures."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

from shoal.errors import counted
from shoal.lazy import papers
from shoal.profiling.cells import Cell, Sweep
from shoal.profiling.counters import Counters, EnergyMeter
from shoal.profiling.footprint import footprint
from shoal.profiling.records import Record, add_growth, growth_records, saving_records, time_record
from shoal.profiling.rounds import Subject, changed, measure, rows_that_fit
from shoal.system.calls import call_in_child
from shoal.system.child import Ended
from shoal.training.config import TrainConfig
from shoal.waiting import Advance

PAPER_GROWTH = 3.9  # cache and dTLB load misses from 3 to 6 agents, both texts
PAPER_REDUCTION = {3: 26.66, 12: 27.39}  # per cent of the sampling phase by neighbours, by number of agents
PAPER_TOTAL_REDUCTION = {12: 10.2}  # and of the whole


@dataclass
class Profile:
    """Everything that was measured, as records."""

    machine: str
    counters: str  # which of the processor's counters are available, and why the others are missing
    rows: list[Record] = field(default_factory=list)  # time, one record per cell
    growth: list[Record] = field(default_factory=list)  # how much longer a round takes when the agents double
    neighbor: list[Record] = field(default_factory=list)  # what neighbour sampling saves
    misses: list[Record] = field(default_factory=list)  # the cache model, per update of all trainers
    memory: list[Record] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # sentences about what could not be measured
    interrupted: bool = False  # Ctrl-C ended it early

    def add(self, part: "Profile") -> None:
        """Take in what was measured of another group."""
        self.rows += part.rows
        self.misses += part.misses
        self.memory += part.memory
        self.growth = growth_records(self.rows)
        self.neighbor = saving_records(self.rows)
        add_growth(self.misses)


def profile(
    sweep: Sweep, advance: Advance, keep: Callable[["Profile"], None] | None = None, in_this_process: bool = False
) -> Profile:
    """Measure all cells, one world and number of agents after the other, each in a process of its own.

    `keep` is called with the profile so far whenever it has grown.
    """
    sweep.check()
    with Counters() as counters:
        so_far = Profile(sweep.geometry().describe(), f"{counters.available()[1]} {EnergyMeter().reason}".strip())
    groups = [replace(sweep, env=(env,), agents=(agents,)) for env, agents in product(sweep.env, sweep.agents)]
    for group in groups:
        ring_of(group)  # refused before anything is measured
    try:
        for group in groups:
            try:
                if in_this_process:
                    part = profile_group(group, advance)
                else:
                    part = Profile(**call_in_child(group_in_child, asdict(group), advance=advance, threads=None))
            except Ended as error:
                so_far.failed.append(f"{label_of(group)}: not measured, its process {error}.")
                continue
            so_far.add(part)
            if keep is not None:
                keep(so_far)
    except KeyboardInterrupt:
        if not so_far.rows:
            raise
        so_far.interrupted = True
        so_far.failed.append("Interrupted: not everything that was asked for was measured.")
    return so_far


def label_of(group: Sweep) -> str:
    """A world and number of agents, for people."""
    return f"{counted(group.agents[0], 'agent')}, {group.env[0]}"


def ring_of(group: Sweep) -> tuple[int, TrainConfig]:
    """Transitions of each ring, if they fit into the memory that is free now, and the settings of training."""
    settings = {"env": group.env[0], "agents": group.agents[0], "threads": group.threads} | group.settings
    config = changed(TrainConfig(episodes=10**7), **settings).checked()
    return rows_that_fit(group.ring, config, group.algorithm, group.implementations()), config


def group_in_child(group: dict[str, Any], advance: Advance) -> dict[str, Any]:
    """`profile_group`, from and to JSON values."""
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in group.items()
    }
    return asdict(profile_group(Sweep(**options), advance))


def profile_group(sweep: Sweep, advance: Advance) -> Profile:
    """Measure the cells of one world and number of agents, which share their rings."""
    cells, label = sweep.cells(), label_of(sweep)
    ring, config = ring_of(sweep)  # once more: memory may be scarcer now
    subjects = {}
    for name in sweep.implementations():
        advance(0.0, f"{label}: filling the ring of the {name}")
        subjects[name] = Subject(changed(config, implementation=name), sweep.algorithm, ring)
    advance(0.0, label)
    part = Profile("", "")

    def record(cell: Cell, regardless: str, values: Record) -> Record:
        return {name: value for name, value in asdict(cell).items() if name != regardless} | {"ring": ring} | values

    with Counters() as counters:
        counting = counters if counters.available()[0] else None
        timings = measure(cells, subjects, ring, sweep.seconds, lambda used: advance(used, label), counting)
    part.rows = [time_record(timing) for timing in timings]
    if sweep.misses:
        advance(0.0, f"{label}: cache model")
        sampling_misses, geometry = papers("caches.model").sampling_misses, sweep.geometry()
        for cell in cells:
            if cell.algorithm == sweep.algorithm[0]:  # the samplers know nothing of algorithms
                misses = sampling_misses(subjects[cell.implementation], cell.algorithm, cell.sampler, geometry)
                part.misses.append(record(cell, "algorithm", {**misses, "growth": None}))
    if sweep.memory:
        advance(0.0, f"{label}: memory")
        for cell in cells:
            if cell.sampler == sweep.sampler[0]:
                taken = footprint(subjects[cell.implementation].use(cell.algorithm, cell.sampler))
                part.memory.append(record(cell, "sampler", asdict(taken)))
    return part
