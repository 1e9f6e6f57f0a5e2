"""Options and service times of a simulation of actors: the command line is made of them before numba is imported."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServiceTimes:
    """How long each process takes for one thing on a core of its own, and the bytes that travel."""

    learner_ms: float
    """Milliseconds of an update, with publishing its version."""
    step_ms: float
    """Milliseconds of an actor's step: inference, environment and writing it into the chunk."""
    insert_ms: float = 0.0
    """Milliseconds that the learner takes to insert one transition."""
    pull_ms: float = 0.0
    """Milliseconds to copy a version out of shared memory, or off the network card."""
    load_ms: float = 0.0
    """Milliseconds to load a version into an actor's engine."""
    quantize_ms: float = 0.0
    """Milliseconds to quantize a version."""
    pull_bytes: float = 0.0
    """Bytes of a version on its way to an actor."""
    transition_bytes: float = 0.0
    """Bytes of a transition on its way to the learner."""
    contention: float = 0.0
    """How much longer everything takes beside other processes on shared --cores, e.g. 0.3: caches, memory and
    hyper-threads are shared."""


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """The simulated run; the defaults are the paper's for its humanoid."""

    samples_per_insert: float = 16.0
    """Times that a transition is sampled on average."""
    batch: int = 256
    """Transitions of a mini-batch."""
    pull_every: int = 100
    """Steps that an actor plays before it pulls the newest version; the paper: 100 for the humanoid, else 1000."""
    copies: int = 1
    """Copies of the world that each actor plays."""
    warmup: int = 2_000
    """Transitions before the first update."""
    error_buffer: float | None = None
    """Samples that the learner may be ahead of the ratio, or behind; None: a tenth of the warm-up's samples."""
    cores: int | None = None
    """Cores that all processes share evenly (with a network, those beside the learner); None: one for each process."""
    network_mbit: float | None = None
    """Bandwidth of the learner's network link in each direction, in Mbit/s; None: actors on the learner's machine."""
    latency_ms: float = 0.0
    """Network latency between the learner and an actor, one way, in milliseconds."""
    variation: float = 0.1
    """Coefficient of variation of all service times."""
    seed: int = 0
    """Random seed."""
