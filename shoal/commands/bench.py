"""`shoal bench`."""

from dataclasses import dataclass
from typing import Annotated

from shoal.arguments import Numbers, numbers, parse
from shoal.console import print_json, print_result, progress_bar
from shoal.errors import UserError, check_choice


def bench(argv: list[str]) -> int:
    """Benchmarks as ratios, both sides measured in one run: worlds over mpe2, updates over bare products, and so on.

    shoal bench env                                            # needs the extra pettingzoo
    shoal bench update --agents 3,12,48
    shoal bench all --json
    """
    import tyro

    @dataclass(frozen=True)
    class BenchCommand:
        name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="BENCH", help_behavior_hint="")] = ""
        """env: worlds over mpe2, and over JaxMARL where it is installed (pip install jaxmarl); workers: a slow
        environment in worker processes over one process; update: an update, native and in torch, over its bare matrix
        products; replay: samplers over a copy; phases: shares of sampling and acting; checkpoint: its time over
        training's; train: whole training over torch's, the reference's and its ceiling; steady: training beside other
        busy processes over training alone; startup: commands that do next to nothing over importing torch; gemm:
        emulated products beside float32 ones; emulated-training: a training step through a MAC unit beside one in
        float32; quantize: rounding beside a copy; qat: quantization-aware training beside plain; inference: engines of
        exported policies beside PyTorch; actorq: quantized actors beside float32 ones, in a running system; cluster:
        actors on a local Ray beside actors over shared memory; all: each of them."""
        agents: Numbers = ""
        """Comma-separated numbers of agents; empty: the bench's own."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(BenchCommand, bench, argv)
    from shoal.bench import BENCHES, parts, run_benches

    known = (*BENCHES, "all")
    if not command.name:
        raise UserError(f"A bench must be named: {', '.join(known)}.")
    check_choice("The bench", command.name, known)
    agents = numbers("--agents", command.agents)
    names = list(BENCHES) if command.name == "all" else [command.name]
    length = sum(len(parts(name, agents, alone=len(names) == 1)) for name in names)
    with progress_bar(f"shoal bench {command.name}", length) as advance:
        found = run_benches(names, agents, lambda: advance(1)).made_by("bench", *argv)
    if command.json:
        print_json(found.to_json())
    else:
        print_result(found)
    return 0
