"""`shoal export`: a trained policy as one ONNX file, or one per agent."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.commands.arguments import parse
from shoal.commands.console import output_file, print_table, progress_bar, quoted
from shoal.results import Column, Table
from shoal.system.files import shown
from shoal.system.processors import has_vnni
from shoal.system.streams import print_json, put, say
from shoal.trust import untrusted

if TYPE_CHECKING:
    from shoal.quantization.export import Exported


def export(argv: list[str]) -> int:
    """Write a trained policy as an ONNX file that maps raw observations to the environment's actions.

    shoal export runs/hunt --precision int8 --out hunt.onnx
    shoal export runs/hunt --precision packed --bits 4 --out hunt.onnx --each
    shoal export dqn.zip --env CartPole-v1 --precision packed --bits 4 --rounding output-error
    shoal export ppo.zip --env CartPole-v1 --precision static-int8 --json
    shoal export sac.zip --env Pendulum-v1 --normaliser vecnormalize.npz --precision int8
    """
    from shoal.commands.policy_arguments import PolicyArguments
    from shoal.inference.options import ExportOptions

    @dataclass(frozen=True)
    class ExportCommand(PolicyArguments):
        export: ExportOptions = field(default_factory=ExportOptions)
        out: str = "policy.onnx"
        """File to write; with --each the agents' names are inserted before its extension."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(ExportCommand, export, argv)
    options = command.export
    options.check()
    path = output_file("out", command.out, ".onnx")
    from shoal.policies.trained import check_loadable

    check_loadable(command.policy, command.checkpoint)
    with progress_bar("shoal export", 2) as advance:
        advance(0, "loading")
        policy = command.load("export")
        advance(1, "checking")
        exported = policy.export_files(path, options)
        advance(1)
    if options.precision == "int8":  # advice, once the export has succeeded
        if options.bits == 8 and not has_vnni():
            say("8-bit products saturate on processors without VNNI, such as this one; 7 bits are safe everywhere.")
        if not policy.linear_only:
            say(
                "Convolutions in int8 scale every state separately and are slower than in float32; static-int8 is "
                "faster."
            )
    if command.json:
        print_json({"policy": command.policy, "files": [dataclasses.asdict(file) for file in exported]})
        return 0
    print_exports(exported)
    if len(exported) == 1:
        trust = " --trust" if untrusted(policy.env, policy.config.env_options) else ""
        put(f"play it with: shoal evaluate {quoted(shown(exported[0].path))}{trust}")
    return 0


def print_exports(exported: list["Exported"]) -> None:
    """The files, with the results of their checks."""
    from shoal.quantization.export import correction_words, no_smaller

    files = [
        {
            "file": Path(file.path).name,
            "precision": file.precision,
            "bits": file.bits,
            "corrected": correction_words(file.corrected, file.rounding),
            "weight bytes": file.weight_bytes,
            "file bytes": file.bytes,
            Column("of the float32 file", format=".0%"): file.bytes / file.float32_file_bytes,
        }
        for file in exported
    ]
    checks = [
        {
            "file": Path(file.path).name,
            "mean error": file.error,
            "allowed": file.tolerance,
            Column("equal choices", format=".1%"): file.agreement,
            Column("products in int8", format=".0%"): file.int8_share,
        }
        for file in exported
    ]
    print_table(Table.of("Exported", files))
    print_table(Table.of(f"Checked on {exported[0].states} states ({exported[0].states_from})", checks))
    largest = max(exported, key=lambda file: file.bytes / file.float32_file_bytes)
    if largest.precision != "float32" and largest.bytes >= largest.float32_file_bytes:
        sizes = largest.bytes, largest.weight_bytes, largest.float32_file_bytes
        put(no_smaller(largest.precision, largest.bits, *sizes))
