"""`shoal simulate`."""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from shoal.commands.arguments import Numbers, numbers, parse, words
from shoal.commands.console import give_result, output_file, progress_bar
from shoal.errors import UserError, check_range

if TYPE_CHECKING:
    from shoal.actorq.simulation import ServiceTimes


def simulate(argv: list[str]) -> int:
    """What more actors, fewer bits, a faster learner or a network would give: a simulated run with quantized actors.

    shoal simulate actorq
    shoal simulate actorq --actors 1,4,16,64,256,1000 --network-mbit 1000 --latency-ms 40
    shoal simulate actorq --learner-ms 3 --step-ms 2.0,0.7 --pull-bytes 34e6,8.6e6 --picture actors.png
    shoal simulate actorq --measure --env dm:walker/stand --algorithm d4pg --hidden 256 256    # needs the extra control
    """
    import tyro

    @dataclass(frozen=True)
    class SimulateCommand:
        system: Annotated[Literal["actorq"], tyro.conf.Positional, tyro.conf.arg(metavar="SYSTEM")]
        """actorq: learner, quantizer and actors of shoal train --actors."""
        actors: Numbers = "1,2,4,8,16,64"
        """Comma-separated numbers of actors."""
        learner_ms: Numbers = ""
        """Milliseconds of an update. This and the other times: one number, or two for float32,int8; empty: measured
        with --measure, else of the humanoid beside the paper's GPU (3 ms)."""
        step_ms: Numbers = ""
        """Milliseconds of an actor's step: inference and environment."""
        insert_ms: Numbers = ""
        """Milliseconds that the learner takes to insert one transition."""
        pull_ms: Numbers = ""
        """Milliseconds to copy a version out of shared memory, or off the network card."""
        load_ms: Numbers = ""
        """Milliseconds to load a version into an actor's engine."""
        quantize_ms: Numbers = ""
        """Milliseconds to quantize a version."""
        pull_bytes: Numbers = ""
        """Bytes of a version on its way to an actor."""
        transition_bytes: Numbers = ""
        """Bytes of a transition on its way to the learner."""
        contention: Numbers = ""
        """How much longer everything takes beside other processes on shared --cores, e.g. 0.3."""
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
        """Cores that all processes share; None: one for each process, with --measure those of this machine."""
        network_mbit: float | None = None
        """Bandwidth of the learner's network link, in each direction; None: actors on the learner's machine."""
        latency_ms: float = 0.0
        """Network latency between the learner and an actor, one way."""
        variation: float = 0.1
        """Coefficient of variation of all service times."""
        seed: int = 0
        """Random seed."""
        measure: bool = False
        """Measure service times on this machine, with one actor, instead of the humanoid's."""
        env: str = "dm:humanoid/stand"
        """With --measure: the environment."""
        algorithm: str = "d4pg"
        """With --measure: the learning algorithm."""
        hidden: tuple[int, ...] = (2048, 2048, 2048)
        """With --measure: units per hidden layer of the policy."""
        critic_hidden: tuple[int, ...] | None = None
        """With --measure: units per hidden layer of the critics; None: as --hidden."""
        seconds: float = 5.0
        """With --measure: seconds per precision."""
        picture: str = ""
        """PNG file for a plot over the number of actors; the result is saved beside it as JSON."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(SimulateCommand, simulate, argv)
    actors = numbers("--actors", command.actors)
    if not actors:
        raise UserError("--actors is empty, but must be whole numbers such as 1,4,16 or 1 4 16.")
    picture = output_file("--picture", command.picture, ".png") if command.picture else None
    given = {name: pair(name, getattr(command, name)) for name in TIMES if getattr(command, name)}
    from shoal.actorq.simulation import Settings
    from shoal.actorq.sweep import HUMANOID, sweep, sweep_result
    from shoal.system.processors import usable_processors

    names = {field.name for field in fields(Settings)} - {"times", "actors"}
    own = {name: getattr(command, name) for name in names}
    settings = Settings(changed(HUMANOID, given)["float32"], **own)
    for count in actors:
        replace(settings, actors=count).check()
    settings.limiter()
    times, source = (
        dict(HUMANOID),
        "dm:humanoid/stand with the paper's policy, beside a GPU learner with 3 ms per update",
    )
    if command.measure:
        times, source = measured(command)
        if settings.cores is None and not settings.networked:
            settings = replace(settings, cores=usable_processors())
    times = changed(times, given)
    if given:
        source += f"; given: {', '.join('--' + name.replace('_', '-') for name in given)}"
    with progress_bar("shoal simulate actorq", sum(actors) * len(times)) as advance:
        rows = sweep(times, settings, actors, advance)
    found = sweep_result(rows, times, settings, source).made_by("simulate", *argv)
    give_result(found, picture, command.picture, command.json)
    return 0


PRECISIONS = ("float32", "int8")
TIMES = (
    "learner_ms", "step_ms", "insert_ms", "pull_ms", "load_ms", "quantize_ms", "pull_bytes", "transition_bytes",
    "contention",
)  # fmt: skip


def pair(name: str, text: str) -> tuple[float, float]:
    """A service time of both precisions: one number for both, or two."""
    option = f"--{name.replace('_', '-')}"
    try:
        found = [float(word) for word in words(text)]
    except ValueError:
        found = []
    if len(found) not in (1, 2):
        raise UserError(f"{option} is '{text}', but must be a number, or two for float32,int8, e.g. 2.0,0.7.")
    for value in found:
        check_range(option, value, 0, 1e12)
    return found[0], found[-1]


def changed(times: "dict[str, ServiceTimes]", given: dict[str, tuple[float, float]]) -> "dict[str, ServiceTimes]":
    """The service times with those that the user gave in their places."""
    return {
        precision: replace(times[precision], **{name: values[k] for name, values in given.items()})
        for k, precision in enumerate(PRECISIONS)
    }


def measured(command: Any) -> "tuple[dict[str, ServiceTimes], str]":
    """Service times of both precisions on this machine, and what they are of."""
    check_range("--seconds", command.seconds, 0.1, 3600)
    from shoal.actorq.service_times import measure
    from shoal.training.config import TrainConfig

    task = {"env": command.env, "algorithm": command.algorithm, "hidden": command.hidden, "batch": command.batch}
    task |= {"copies": command.copies, "critic_hidden": command.critic_hidden}
    times = {}
    configs = {
        name: TrainConfig(actors=1, actor_precision=name, **task).checked()  # type: ignore[arg-type]
        for name in PRECISIONS
    }
    with progress_bar("shoal simulate actorq: measuring", len(PRECISIONS)) as advance:
        for precision, config in configs.items():
            advance(0, precision)
            times[precision] = measure(config, command.seconds)
            advance(1, precision)
    layers = "×".join(map(str, command.hidden))
    return times, f"{command.env} with {command.algorithm} and layers of {layers}, measured on this machine"
