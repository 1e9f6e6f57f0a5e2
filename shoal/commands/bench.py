"""`shoal bench`."""

from dataclasses import dataclass
from typing import Annotated

from shoal.commands.arguments import parse
from shoal.commands.console import print_result, progress_bar
from shoal.errors import UserError, check_choice
from shoal.system.streams import print_json


def bench(argv: list[str]) -> int:
    """Benchmarks as ratios, both sides measured in one run: our worlds and mpe2's, updates and bare products.

    shoal bench env                                            # needs the extra pettingzoo
    shoal bench update --agents 3,12,48
    shoal bench all --json
    """
    import tyro

    @dataclass(frozen=True)
    class BenchCommand:
        name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="BENCH", help_behavior_hint="")] = ""
        """env: worlds relative to mpe2's, and to JaxMARL's where it is installed (pip install jaxmarl); workers: a slow
        environment in worker processes relative to one process; update: an update, native and in torch, relative to
        its bare matrix products; replay: samplers relative to a copy; phases: shares of sampling and acting;
        checkpoint: its time relative to training's; train: whole training relative to torch's, the reference's and its
        upper limit; steady: training beside other busy processes relative to training alone; startup: start-up time of
        commands relative to `import torch`; gemm: emulated products and float32 ones; emulated-training: a training
        step through a MAC unit and in float32; quantize: rounding and a copy; qat: quantization-aware and plain
        training; inference: engines of exported policies and PyTorch; actorq: quantized actors and float32 ones, in a
        running system; cluster: actors on a local Ray and over shared memory; all: each of them."""
        agents: tuple[int, ...] = ()
        """Comma-separated numbers of agents; empty: the bench's own."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(BenchCommand, bench, argv)
    from shoal.bench import BENCHES, parts, run_benches

    known = (*BENCHES, "all")
    if not command.name:
        raise UserError(f"A bench must be named: {', '.join(known)}.")
    check_choice("The bench", command.name, known)
    names = list(BENCHES) if command.name == "all" else [command.name]
    length = sum(len(parts(name, command.agents, alone=len(names) == 1)) for name in names)
    with progress_bar(f"shoal bench {command.name}", length) as advance:
        result = run_benches(names, command.agents, lambda: advance(1)).made_by("bench", *argv)
    if command.json:
        print_json(result.to_json())
    else:
        print_result(result)
    return 0
