"""Mistakes of the user: one sentence, exit code 2, no traceback; checks of inputs; what was meant by a wrong name."""

import difflib
import functools
import inspect
import operator
from collections.abc import Callable, Collection, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class UserError(Exception):
    """What is wrong, where, and what would be right, in one sentence."""


class Diverged(UserError):
    """A training's numbers are not finite; the sentence has no full stop yet, because the loop knows more about it."""


class ActorsLost(UserError):
    """Who plays for a training is gone, all at once; a run that was asked to stop saves its state nevertheless."""


def closest(word: object, choices: Iterable[str]) -> str | None:
    """The choice that was probably meant by a word that is none of them.

    One holds the other (eval), they begin alike (evaluation), or they differ by a typing error: one in words of up to
    seven letters, two up to eleven, …. Words that merely share letters, such as report and export, are not close.
    """
    written = str(word).lower()

    def near(choice: str) -> bool:
        alike = written in choice or choice in written or written.startswith(choice[: max(5, 3 * len(choice) // 4)])
        return min(len(written), len(choice)) > 2 and (alike or _typed_for(written, choice))

    similar = [choice for choice in choices if near(choice.lower())]
    return next(iter(difflib.get_close_matches(written, similar, n=1, cutoff=0.0)), None)


def _typed_for(word: str, choice: str) -> bool:
    """Whether few typing errors (a letter too many, missing, wrong or swapped with the next) lie between them."""
    before: list[int] = []
    row = list(range(len(choice) + 1))  # errors from the word so far to the choice's beginnings
    for i, letter in enumerate(word, 1):
        older, before, row = before, row, [i]
        for j, other in enumerate(choice, 1):
            errors = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == choice[j - 2] and word[i - 2] == other:
                errors = min(errors, older[j - 2] + 1)
            row.append(errors)
    return row[-1] <= max(1, min(len(word), len(choice)) // 4)


def perhaps(word: object, choices: Iterable[str]) -> str:
    """The same as words to put behind the wrong one, or nothing."""
    meant = closest(word, choices)
    return f" (perhaps you meant {meant})" if meant else ""


def setting(name: str) -> str:
    """How sentences name a setting: in backquotes, which the command line replaces by its option; other names stay."""
    return f"`{name}`" if name.isidentifier() else name


def check_choice(name: str, value: str, choices: tuple[str, ...] | list[str]) -> None:
    """Raise a `UserError` that lists the choices unless `value` is one of them."""
    if value not in choices:
        guess = perhaps(value, choices)
        raise UserError(f"{setting(name)} '{value}' is not known{guess}; choose one of: {', '.join(choices)}.")


def check_range(name: str, value: float, low: float, high: float | None = None) -> None:
    """Raise a `UserError` unless low <= value (<= high). NaN is out of every range."""
    if not (value >= low and (high is None or value <= high)):
        right = f"at least {low}" if high is None else f"from {low} to {high}"
        raise UserError(f"{setting(name)} is {value}, but must be {right}.")


def whole_number(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """`value` as an int, or a `UserError` if it is not a whole number (from low to high)."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UserError(f"{setting(name)} is {value!r}, but must be a whole number.") from None
    if low is not None:
        check_range(name, number, low, high)
    return number


def install(extra: str) -> str:
    """What to do where the packages of one of Shoal's extras are missing; Shoal itself is not on PyPI."""
    return f"run pip install -c constraints.txt -e '.[{extra}]' in your clone of Shoal"


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things in words: 1 episode, 2,000 episodes; `plural` where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def printable(text: str) -> str:
    """The text on one line: characters that a terminal would not show, or would obey, are written as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


# Names of settings in other libraries -----------------------------------------------------------------------------

SETTING_ALIASES = {"lr": "learning_rate", "gamma": "discount", "batch_size": "batch"}
"""Other names of settings, which `shoal train` and sweep files understand."""
ELSEWHERE = {
    "actor_lr": "learning_rate", "alpha": "entropy", "buffer": "capacity", "buffer_size": "capacity",
    "critic_lr": "learning_rate", "cuda": "device", "ent_coef": "entropy", "env_id": "env", "env_name": "env",
    "episode_limit": "episode_length", "eps": "epsilon", "eval_every": "evaluate_every", "eval_freq": "evaluate_every",
    "evaluate": "evaluate_every", "exp_name": "out", "exploration_final_eps": "epsilon",
    "exploration_fraction": "epsilon_decay", "gpu": "device", "gpus": "device", "grad_clip": "clip",
    "grad_norm": "clip", "gradient_clip": "clip", "horizon": "episode_length", "learning_starts": "warmup",
    "log_dir": "out", "log_interval": "log_every", "logdir": "out", "lr_actor": "learning_rate",
    "max_cycles": "episode_length", "max_episode_steps": "episode_length", "max_grad_norm": "clip",
    "max_steps": "episodes", "memory": "capacity", "minibatch_size": "batch", "n_agents": "agents", "n_envs": "copies",
    "n_eval_episodes": "evaluate_episodes", "net_arch": "hidden", "no_cuda": "device", "nproc": "threads",
    "num_agents": "agents", "num_envs": "copies", "num_layers": "hidden", "num_prey": "prey_count",
    "num_seeds": "seeds", "num_workers": "env_workers", "output": "out", "parallel_envs": "copies",
    "policy": "algorithm", "policy_lr": "learning_rate", "polyak": "tau", "q_lr": "learning_rate",
    "replay_buffer_size": "capacity", "replay_size": "capacity", "save_freq": "checkpoint_every", "save_path": "out",
    "scenario": "env", "seed_list": "seeds", "start_steps": "warmup", "steps": "episodes",
    "target_network_frequency": "target_period", "target_update": "target_period",
    "target_update_interval": "target_period", "task": "env", "temperature": "entropy", "timesteps": "episodes",
    "total_steps": "episodes", "total_timesteps": "episodes", "train_freq": "update_every",
    "update_freq": "update_every", "update_interval": "update_every", "vec_envs": "copies",
    "wandb_project": "track_project", "wandb_project_name": "track_project", "workers": "env_workers",
}  # fmt: skip
"""The settings nearest to those of Stable-Baselines3, CleanRL, BenchMARL and others. They are suggested and not
aliases, because they count something else (timesteps, not episodes) or their values differ."""
OTHER_COMMANDS = {
    "ckpt": "checkpoint", "jobs": "parallel", "n_eval_episodes": "episodes", "n_jobs": "parallel",
    "num_episodes": "episodes", "num_epochs": "epochs", "num_workers": "parallel", "sample": "deterministic",
    "wd": "weight_decay", "workers": "parallel",
}  # fmt: skip
"""The same for settings that `shoal train` does not have, or has under another name."""
TABLES = (OTHER_COMMANDS, ELSEWHERE, SETTING_ALIASES)  # the last has precedence
NEARLY = 0.88
"""How alike two names must be that are the same but for a letter: with less, --mask would be taken for --task."""


def nearest(word: str, settings: Collection[str]) -> str | None:
    """The one of these settings that was probably meant; the word may be spelt as an option."""
    word = word.lstrip("-").partition("=")[0].replace("-", "_").lower()
    here = {name.replace("_", ""): name for name in settings}
    elsewhere = {
        name.replace("_", ""): setting for table in TABLES for name, setting in table.items() if setting in settings
    }
    short = word.replace("_", "")
    for names in (here, elsewhere):
        if short in names:
            return names[short]
    if len(short) < 3:
        return None
    for names in (here, elsewhere):
        if close := difflib.get_close_matches(short, names, n=1, cutoff=NEARLY):
            return names[close[0]]
    # The shortest setting that begins with the word, if all others that do begin with it; or the most similar one; or
    # the longest one that the word begins with.
    longer = sorted((name for name in settings if name.startswith(word)), key=len)
    close = difflib.get_close_matches(word, settings, n=1, cutoff=0.75)
    shorter = sorted((name for name in settings if word.startswith(f"{name}_")), key=len, reverse=True)
    unique = longer[:1] if all(name.startswith(longer[0]) for name in longer) else []
    return next(iter(unique + close + shorter), None)


class UnknownName(UserError, TypeError):
    """A keyword argument that a function or a class does not have; a `TypeError` as well, as Python's own would be."""


def check_names(what: str, given: Collection[str], known: Collection[str], otherwise: str = "") -> None:
    """Refuse the first of the given keyword arguments that is not known, with the one that was probably meant.

    `otherwise` is said where nothing similar is known.
    """
    for name in given:
        if name not in known:
            meant = nearest(name, known)
            raise UnknownName(f"{what} has no '{name}'{f'; perhaps you meant {meant}' if meant else otherwise}.")


def names_checked(function: Callable[P, T]) -> Callable[P, T]:
    """The same function, which suggests a keyword argument in place of one that it does not have."""
    known = [*inspect.signature(function).parameters]

    @functools.wraps(function)
    def checked(*args: P.args, **named: P.kwargs) -> T:
        check_names(f"{function.__name__}()", named, known, "; settings are in its config" if "config" in known else "")
        return function(*args, **named)

    return checked
