"""`shoal export`: a trained policy as one ONNX file, or one per agent."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from shoal.commands.arguments import parse
from shoal.commands.console import output_file, print_table, progress_bar, quoted
from shoal.errors import UserError, check_range
from shoal.results import Column, Table
from shoal.system.files import shown
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
    import tyro

    @dataclass(frozen=True)
    class ExportCommand:
        policy: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN-OR-ZIP")]
        """Run folder, or Stable-Baselines3 zip (A2C, PPO, DQN, DDPG, TD3, SAC)."""
        checkpoint: str = "last"
        """Run: newest weights (last), those with the best evaluation (best), or the episode of a snapshot."""
        precision: Literal["float32", "float16", "int8", "static-int8", "packed"] = "float32"
        """float16: weights only; int8: activations scaled per state; static-int8: scales calibrated on the policy's
        states; packed: weights of few bits, for storage."""
        bits: int | None = None
        """Bits of the weights: 2 to 7 if packed (None: as in quantization-aware training, else 4), 2 to 8 in int8 and
        static-int8 (None: 7, or 8 where this processor has VNNI; without VNNI products of 8 bits saturate, so choose 7
        for other machines)."""
        out: str = "policy.onnx"
        """File to write; with --each the agents' names are inserted before its extension."""
        each: bool = False
        """One file per agent instead of one for the team."""
        single: bool = False
        """Optimise for one state at a time: int8 products are fused."""
        sample: bool = False
        """Sample discrete actions, with uniform numbers as a second input, instead of taking the most likely
        (deterministic=False in Python)."""
        tolerance: float | None = None
        """Maximum mean error of an action, as a fraction of its range; None: by precision."""
        correct_bias: bool = True
        """int8, static-int8, packed: move biases so that mean pre-activations over visited states stay those of full
        precision."""
        rounding: Literal["nearest", "output-error"] = "nearest"
        """int8, static-int8, packed: how weights are rounded; output-error: so that the layers' outputs over visited
        states stay close, which keeps most of the actions at few bits."""
        seed: int = 0
        """Random seed of the states that are played where the run has none on disk."""
        env: str = ""
        """Environment of the policy; empty: the run's own. A zip needs one, e.g. CartPole-v1."""
        normaliser: str = ""
        """Zip: observation normaliser (VecNormalize) as .npz or .safetensors; .pkl only with --trust."""
        trust: bool = False
        """Allow third-party code: Stable-Baselines3 loads the zip itself (custom classes need that), and a run may play
        in the environment that it names (gym:MODULE:NAME, pettingzoo:MODULE)."""
        json: bool = False
        """Print one JSON object on standard output and nothing else there."""

    command = parse(ExportCommand, export, argv)
    check_range("--seed", command.seed, 0, 2**62)
    if command.tolerance is not None:
        check_range("--tolerance", command.tolerance, 0, 1)
    path = output_file("--out", command.out, ".onnx")
    from shoal.inference.form import check_bits
    from shoal.policies.loading import check_loadable

    check_bits(command.precision, command.bits)
    check_loadable(command.policy, command.checkpoint)
    with progress_bar("shoal export", 2) as advance:
        advance(0, "loading")
        from shoal.policies import load
        from shoal.policies.torch_policy import TorchPolicy
        from shoal.quantization.export import ExportOptions

        options = ExportOptions(
            command.precision, command.bits, command.single, command.sample, command.tolerance, command.seed,
            command.each, command.correct_bias, command.rounding,
        )  # fmt: skip
        policy = load(
            command.policy, command.env, normaliser=command.normaliser, checkpoint=command.checkpoint,
            trust=command.trust, warn=say,
        )  # fmt: skip
        if not isinstance(policy, TorchPolicy):
            raise UserError(
                f"'{command.policy}' is already an exported file; export the run or the zip that it was made from."
            )
        advance(1, "checking")
        exported = policy.export_files(path, options)
        advance(1)
    if command.precision == "int8":
        say_int8(policy.linear_only, command.bits)
    if command.json:
        print_json({"policy": command.policy, "files": [dataclasses.asdict(one) for one in exported]})
        return 0
    print_exports(exported)
    if len(exported) == 1:
        trust = " --trust" if untrusted(policy.env, policy.config.env_options) else ""
        put(f"play it with: shoal evaluate {quoted(shown(exported[0].path))}{trust}")
    return 0


def say_int8(linear_only: bool, bits: int | None) -> None:
    """Advice on the chosen precision, once the export has succeeded."""
    from shoal.system.processors import has_vnni

    if bits == 8 and not has_vnni():
        say("8-bit products saturate on processors without VNNI, such as this one; 7 bits are safe everywhere.")
    if not linear_only:
        say("Convolutions in int8 scale every state separately and are slower than in float32; static-int8 is faster.")


def print_exports(exported: list["Exported"]) -> None:
    """The files, with the results of their checks."""
    from shoal.policies.width_result import correction_words, no_smaller

    files = [
        {
            "file": Path(one.path).name,
            "precision": one.precision,
            "bits": one.bits,
            "corrected": correction_words(one.corrected, one.rounding),
            "weight bytes": one.weight_bytes,
            "file bytes": one.bytes,
            Column("of the float32 file", format=".0%"): one.bytes / one.float32_file_bytes,
        }
        for one in exported
    ]
    checks = [
        {
            "file": Path(one.path).name,
            "mean error": one.error,
            "allowed": one.tolerance,
            Column("equal choices", format=".1%"): one.agreement,
            Column("products in int8", format=".0%"): one.int8_share,
        }
        for one in exported
    ]
    print_table(Table.of("Exported", files))
    print_table(Table.of(f"Checked on {exported[0].states} states ({exported[0].states_from})", checks))
    largest = max(exported, key=lambda one: one.bytes / one.float32_file_bytes)
    if largest.precision != "float32" and largest.bytes >= largest.float32_file_bytes:
        sizes = largest.bytes, largest.weight_bytes, largest.float32_file_bytes
        put(no_smaller(largest.precision, largest.bits, *sizes))
