"""`shoal simulate`."""

from dataclasses import dataclass, field, fields, make_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from shoal.commands.arguments import is_given, option, parse
from shoal.commands.console import give_result, output_file, progress_bar
from shoal.errors import UserError, check_range

if TYPE_CHECKING:
    from shoal.actorq.simulation import Settings
    from shoal.actorq.simulation_options import ServiceTimes


def simulate(argv: list[str]) -> int:
    """Simulate a run with quantized actors: the effect of more actors, fewer bits, a faster learner or a network.

    shoal simulate actorq
    shoal simulate actorq --actors 1,4,16,64,256,1000 --network-mbit 1000 --latency-ms 40
    shoal simulate actorq --learner-ms 3 --step-ms 2.0,0.7 --pull-bytes 34e6,8.6e6 --picture actors.png
    shoal simulate actorq --measure --env dm:walker/stand --algorithm d4pg --hidden 256 256    # needs the extra control
    """
    import tyro
    from docstring_parser import parse_from_object

    from shoal.actorq.simulation_options import ServiceTimes, SimulationOptions

    texts = {setting.arg_name: setting.description for setting in parse_from_object(ServiceTimes).params}
    pairs = [
        (each.name, Annotated[tuple[str, ...], tyro.conf.arg(help=" ".join((texts[each.name] or "").split()))], ())
        for each in fields(ServiceTimes)
    ]
    Times: Any = make_dataclass("Times", pairs, frozen=True)
    Times.__doc__ = (
        "Service times: one number, or two for float32,int8; those that are not given are measured with --measure, "
        "else the humanoid's beside the paper's GPU (3 ms)."
    )

    @dataclass(frozen=True)
    class Measurement:
        """Service times measured on this machine, with one actor."""

        measure: bool = False
        """Measure service times instead of taking the humanoid's."""
        env: str = "dm:humanoid/stand"
        """The environment."""
        algorithm: str = "d4pg"
        """The learning algorithm."""
        hidden: tuple[int, ...] = (2048, 2048, 2048)
        """Units per hidden layer of the policy."""
        critic_hidden: tuple[int, ...] | None = None
        """Units per hidden layer of the critics; None: as --hidden."""
        seconds: float = 5.0
        """Seconds per precision."""

    @dataclass(frozen=True)
    class SimulateCommand:
        system: Annotated[Literal["actorq"], tyro.conf.Positional, tyro.conf.arg(metavar="SYSTEM")]
        """actorq: learner, quantizer and actors of shoal train --actors."""
        actors: tuple[int, ...] = (1, 2, 4, 8, 16, 64)
        """Comma-separated numbers of actors."""
        times: Times = field(default_factory=Times)
        simulation: SimulationOptions = field(default_factory=SimulationOptions)
        measurement: Measurement = Measurement()
        picture: str = ""
        """PNG file for a plot over the number of actors; the result is saved beside it as JSON."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(SimulateCommand, simulate, argv)
    if not command.actors:
        raise UserError("`actors` is empty, but must be whole numbers such as 1,4,16 or 1 4 16.")
    picture = output_file("picture", command.picture, ".png") if command.picture else None
    given = {name: pair(name, words) for name, words in vars(command.times).items() if words or is_given(argv, name)}
    from shoal.actorq.simulation import Settings
    from shoal.actorq.sweep import HUMANOID, sweep, sweep_result
    from shoal.system.processors import usable_processors

    settings = Settings(changed(HUMANOID, given)["float32"], **vars(command.simulation))
    for count in command.actors:
        replace(settings, actors=count).check()
    settings.limiter()
    times = HUMANOID
    source = "dm:humanoid/stand with the paper's policy, beside a GPU learner with 3 ms per update"
    if command.measurement.measure:
        times, source = measured(command.measurement, settings)
        if settings.cores is None and not settings.networked:
            settings = replace(settings, cores=usable_processors())
    times = changed(times, given)
    if given:
        source += f"; given: {', '.join(map(option, given))}"
    with progress_bar("shoal simulate actorq", sum(command.actors) * len(times)) as advance:
        rows = sweep(times, settings, command.actors, advance)
    result = sweep_result(rows, times, settings, source).made_by("simulate", *argv)
    give_result(result, picture, command.picture, command.json)
    return 0


PRECISIONS = ("float32", "int8")


def pair(name: str, words: tuple[str, ...]) -> tuple[float, float]:
    """A service time of both precisions: one number for both, or two."""
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    if len(values) not in (1, 2):
        raise UserError(
            f"`{name}` is '{','.join(words)}', but must be a number, or two for float32,int8, e.g. 2.0,0.7."
        )
    for value in values:
        check_range(name, value, 0, 1e12)
    return values[0], values[-1]


def changed(times: "dict[str, ServiceTimes]", given: dict[str, tuple[float, float]]) -> "dict[str, ServiceTimes]":
    """The service times with those that the user gave in their places."""
    return {
        precision: replace(times[precision], **{name: values[k] for name, values in given.items()})
        for k, precision in enumerate(PRECISIONS)
    }


def measured(measurement: Any, settings: "Settings") -> "tuple[dict[str, ServiceTimes], str]":
    """Service times of both precisions on this machine, and what they are of."""
    check_range("seconds", measurement.seconds, 0.1, 3600)
    from shoal.actorq.service_times import measure
    from shoal.training.config import TrainConfig

    task: dict[str, Any] = {
        name: getattr(measurement, name) for name in ("env", "algorithm", "hidden", "critic_hidden")
    }
    task |= {"batch": settings.batch, "copies": settings.copies, "actors": 1}
    configs = {name: TrainConfig(**task, actor_precision=name).checked() for name in PRECISIONS}  # type: ignore[arg-type]
    times = {}
    with progress_bar("shoal simulate actorq: measuring", len(PRECISIONS)) as advance:
        for precision, config in configs.items():
            advance(0, precision)
            times[precision] = measure(config, measurement.seconds)
            advance(1, precision)
    layers = "×".join(map(str, measurement.hidden))
    return times, f"{measurement.env} with {measurement.algorithm} and layers of {layers}, measured on this machine"
