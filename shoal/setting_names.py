"""Other names of settings, and the setting that was probably meant by an unknown name."""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

from shoal.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")

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
    "update_freq": "update_every", "update_interval": "update_every", "vec_envs": "copies", "workers": "env_workers",
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
"""How alike two names must be that are the same but for a letter: with less, --track would be taken for --task."""


def nearest(word: str, settings: Collection[str]) -> str | None:
    """The one of these settings that was probably meant; the word may be spelt as an option."""
    word = word.lstrip("-").partition("=")[0].replace("-", "_").lower()
    own = {name.replace("_", ""): name for name in settings}
    elsewhere = {
        name.replace("_", ""): setting for table in TABLES for name, setting in table.items() if setting in settings
    }
    short = word.replace("_", "")
    for names in (own, elsewhere):
        if short in names:
            return names[short]
    if len(short) < 3:
        return None
    for names in (own, elsewhere):
        if close := difflib.get_close_matches(short, names, n=1, cutoff=NEARLY):
            return names[close[0]]
    return _similar(word, settings)


def _similar(word: str, settings: Collection[str]) -> str | None:
    """The only setting that begins with the word, or the most similar one, or the longest that the word begins with."""
    longer = [name for name in settings if name.startswith(word)]
    close = difflib.get_close_matches(word, settings, n=1, cutoff=0.75)
    shorter = sorted((name for name in settings if word.startswith(f"{name}_")), key=len, reverse=True)
    found = [*(longer if len(longer) == 1 else ()), *close, *shorter]
    return found[0] if found else None


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
