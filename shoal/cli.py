"""The command line: finds the command and handles errors. Commands import heavy libraries when they run."""

import sys

from shoal.commands.arguments import overview
from shoal.commands.bench import bench
from shoal.commands.console import warnings_as_sentences
from shoal.commands.evaluate import evaluate
from shoal.commands.export import export
from shoal.commands.mac import mac
from shoal.commands.profile import profile
from shoal.commands.quantize import quantize
from shoal.commands.simulate import simulate
from shoal.commands.study import study
from shoal.commands.sweep import sweep
from shoal.commands.train import train
from shoal.commands.watch import watch
from shoal.errors import UserError, perhaps
from shoal.system.files import start_here
from shoal.system.memory import ran_out_of_memory
from shoal.system.streams import answers_only, put, say, word_sentences
from shoal.trust import import_from_working_directory, names_third_party

ALL = (train, sweep, evaluate, watch, quantize, export, profile, simulate, study, bench, mac)
COMMANDS = {command.__name__: command for command in ALL}


def main(argv: list[str] | None = None) -> int:
    """Run a command; mistakes of the user end in one sentence and exit code 2."""
    try:
        start_here()
        with answers_only(), warnings_as_sentences():
            return run_command(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        say(f"shoal: {error}")
        return 2
    except KeyboardInterrupt as stop:
        say("Interrupted.")
        return 128 + getattr(stop, "number", 2)
    except Exception as error:
        if isinstance(error, ImportError) and isinstance(error.__cause__, KeyboardInterrupt):
            # by Ctrl-C while native code was being loaded
            say("Interrupted.")
            return 130
        if not ran_out_of_memory(error):
            raise
        say("shoal: There is not enough memory; use fewer `agents`, or a smaller `capacity` or `batch`.")
        return 2
    finally:
        word_sentences(str)


def run_command(argv: list[str]) -> int:
    """Find the command and run it."""
    if names_third_party(argv):  # else nothing in the working directory is imported, whatever its files are called
        import_from_working_directory()
    if not argv or argv[0] in ("-h", "--help", "help"):
        put(overview("Shoal trains teams of agents, and shows where every second and every bit goes.", COMMANDS))
        return 0 if argv else 2
    if argv[0] == "--version":
        from shoal import __version__

        put(__version__)
        return 0
    if argv[0] not in COMMANDS:
        raise UserError(
            f"There is no command '{argv[0]}'{perhaps(argv[0], COMMANDS)}; the commands are {', '.join(COMMANDS)}."
        )
    from shoal.runs.interrupt import stop_at_signals
    from shoal.system.memory import check_limits
    from shoal.system.processes import prepare

    prepare()
    if not {"-h", "--help"} & set(argv):
        exported = any(word.lower().endswith(".onnx") for word in argv[1:])  # which is played without torch
        check_limits(torch=argv[0] != "evaluate" or not exported)
    stop_at_signals()
    return COMMANDS[argv[0]](argv[1:])
