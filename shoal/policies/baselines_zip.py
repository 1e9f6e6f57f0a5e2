"""The parts of a Stable-Baselines3 zip that can be read without running code: its tensors and its JSON.

policy.pth is a pickle, too: torch's weights-only loader reads tensors and plain containers from it and refuses
everything else. The pickles inside the JSON are not loaded.
"""

import base64
import errno
import io
import json
import pickle
import pickletools
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.errors import UserError

Algorithm = Literal["a2c", "ppo", "dqn", "ddpg", "td3", "sac"]
READ = "A2C, PPO, DQN, DDPG, TD3 and SAC can be read"
SPACES = {"observation_space": ("Box", "Discrete", "MultiBinary"), "action_space": ("Box", "Discrete")}
MOST_PACKED = 100  # largest compression ratio of a genuine model's parts; weights hardly compress at all
MOST_SHOWN = 16  # largest ratio of all tensors in float32 to their stored bytes: some are shared, others have 8 bits
MOST_PICKLED = 2**20
"""Largest pickle in the JSON, in characters, that is read for a hint; genuine ones have a few thousand."""
ROUNDING = 1e-5  # bounds of spaces are in the zip as text with eight digits
OTHERS = {  # names of tensors, or settings, that only other algorithms have
    "quantile_net": "QR-DQN",
    "top_quantiles_to_drop_per_net": "TQC",
    "lstm_actor": "RecurrentPPO",
    "cg_max_steps": "TRPO",
}


def read_parts(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON and the tensors of a zip."""
    try:
        with zipfile.ZipFile(path) as archive:
            if missing := {"data", "policy.pth"} - set(archive.namelist()):
                raise UserError(f"'{path}' is not a Stable-Baselines3 model: it has no '{min(missing)}'.")
            _check_packing(path, [archive.getinfo(name) for name in ("data", "policy.pth")], path.stat().st_size)
            text, stored = archive.read("data"), archive.read("policy.pth")
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}'.") from None
    except (
        zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError,
    ) as error:  # fmt: skip
        raise UserError(f"'{path}' is not a valid zip file ({str(error).rstrip('.') or 'it is truncated'}).") from None
    except OSError as error:
        if error.errno == errno.EINVAL:  # a place before the beginning of the file
            raise UserError(f"'{path}' is not a valid zip file (it is truncated).") from None
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"'data' in '{path}' is damaged: {error}.") from None
    if not isinstance(data, dict):
        raise UserError(f"'data' in '{path}' is not a JSON object: it is not a Stable-Baselines3 model.")
    return data, _tensors(path, stored)


def unpacked_times(parts: list[zipfile.ZipInfo], size: int) -> float:
    """The compression ratio of some parts of a zip."""
    return sum(part.file_size for part in parts) / max(size, 1)


def _check_packing(path: Path, parts: list[zipfile.ZipInfo], size: int, most: float = MOST_PACKED) -> None:
    """Refuse parts with an implausible compression ratio."""
    if (times := unpacked_times(parts, size)) > most:
        largest = max(parts, key=lambda part: part.file_size).filename
        raise UserError(f"'{largest}' in '{path}' would be {times:,.0f} times as large unpacked: it is not a model.")


def _tensors(path: Path, stored: bytes) -> dict[str, Tensor]:
    """The tensors of policy.pth by name; anything else is refused."""
    damaged = UserError(f"'policy.pth' in '{path}' is damaged.")
    try:
        if zipfile.is_zipfile(io.BytesIO(stored)):
            _check_packing(path, zipfile.ZipFile(io.BytesIO(stored)).infolist(), len(stored), 1)  # never compressed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's guesses about other archives; the error below is clearer
            tensors = torch.load(io.BytesIO(stored), map_location="cpu", weights_only=True)
    except UserError:
        raise
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = f"the object {named[1]}" if named else "something that is not a tensor"
        raise UserError(f"'policy.pth' in '{path}' holds {what}, which is never loaded: it is not a model.") from None
    except Exception:  # damaged bytes fail in many ways
        raise damaged from None
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise UserError(f"'policy.pth' in '{path}' does not hold a model's tensors.")
    if any(
        value.layout != torch.strided or value.device.type != "cpu" or value.is_complex() for value in tensors.values()
    ):
        raise damaged
    if sum(4 * tensor.numel() for tensor in tensors.values()) > MOST_SHOWN * (len(stored) + 2**20):
        raise damaged  # entries that are expanded many times, but stored once
    return {str(name): tensor.detach().float() for name, tensor in tensors.items()}


def algorithm_of(path: Path, data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Algorithm:
    """Infer the algorithm from tensors and settings: the zip does not name it."""
    for mark, other in OTHERS.items():
        if mark in data or any(name.startswith(f"{mark}.") for name in tensors):
            raise UserError(f"'{path}' is a model of {other}, but only {READ}.")
    if "action_net.weight" in tensors:
        return "ppo" if "clip_range" in data else "a2c"
    if any(name.startswith("q_net.q_net.") for name in tensors):
        return "dqn"
    if any(name.startswith(("actor.log_std.", "actor.latent_pi.")) or name == "actor.log_std" for name in tensors):
        return "sac"
    if any(name.startswith("actor.mu.") for name in tensors):  # DDPG is TD3 without its tricks
        return "ddpg" if (data.get("policy_delay"), data.get("target_noise_clip")) == (1, 0) else "td3"
    some = ", ".join([*tensors][:3]) + ", …" * (len(tensors) > 3) or "none"
    raise UserError(f"'{path}' is a model of an unknown algorithm (its tensors are {some}), but only {READ}.")


def check_spaces(path: Path, data: Mapping[str, Any]) -> None:
    """Refuse observation and action spaces of unsupported kinds."""
    for key, known in SPACES.items():
        name = class_name(plain(data, key).get(":type:", "")).rpartition(".")[2]
        if name and name not in known:
            what = key.removesuffix("_space")
            raise UserError(
                f"The model in '{path}' has {what}s of the space {name}, but only {', '.join(known)} are supported."
            )


def plain(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The plain fields of a JSON entry, ignoring a pickle beside them."""
    part = data.get(key)
    return part if isinstance(part, dict) else {}


def logged_returns(data: Mapping[str, Any]) -> tuple[float, ...]:
    """Returns of the last training episodes, from `ep_info_buffer`; empty if there are none to be read.

    The buffer is a pickle of dictionaries {"r": return, …}. Its instructions are read, not followed: a number right
    after the key "r", or after the memory cell that holds it, is a return.
    """
    returns, keys, cells = [], set[int](), 0
    after_key = text = False
    try:
        for operation, value in _instructions(data, "ep_info_buffer"):
            if operation.name == "MEMOIZE":
                if text:
                    keys.add(cells)
                cells += 1
                continue  # the key is still the last value
            if after_key and operation.name == "BINFLOAT" and isinstance(value, float) and isfinite(value):
                returns.append(value)
            text = "UNICODE" in operation.name and value == "r"
            after_key = text or ("GET" in operation.name and value in keys)
    except (KeyError, TypeError, ValueError):  # none there, or of another version of Python
        return ()
    return tuple(returns)


def saw_normalised(data: Mapping[str, Any], algorithm: Algorithm) -> bool | None:
    """Whether it was trained with VecNormalize, if the zip says so; None if it does not.

    A2C and PPO keep original observations beside those that they saw only then. The others always do, but of another
    type only then: VecNormalize gives float32, whatever the environment does (MuJoCo's give float64).
    """
    if algorithm in ("a2c", "ppo"):
        learned = any(data.get(name) is not None for name in ("_last_obs", "_last_original_obs"))
        return data.get("_last_original_obs") is not None if learned else None
    seen, original = _number_types(data, "_last_obs"), _number_types(data, "_last_original_obs")
    return True if seen and original and seen != original else None


def saw_outside(data: Mapping[str, Any]) -> bool:
    """Whether the last observations that the network saw in training are outside its observation space.

    VecNormalize changes observations, but not the space that the zip describes. The numbers of a pickled array are its
    longest string of bytes.
    """
    bounds = space_bounds(data, "observation_space")
    try:
        (kind,) = _number_types(data, "_last_obs")
        stored = [value for _, value in _instructions(data, "_last_obs") if isinstance(value, bytes | bytearray)]
        if bounds is None:
            return False
        seen = np.frombuffer(max(stored, key=len), f"<{kind}").reshape(-1, len(bounds[0]))
    except (KeyError, TypeError, ValueError):
        return False
    return bool(((seen < bounds[0] - ROUNDING) | (seen > bounds[1] + ROUNDING)).any())


def space_bounds(data: Mapping[str, Any], key: str) -> NDArray[np.float64] | None:
    """(2, …): lowest and highest values of a box, flattened, from plain text; None if they cannot be read."""
    space = plain(data, key)
    try:
        words = (re.sub(r"[\[\]]", " ", space[end]).split() for end in ("low", "high"))
        bounds = np.array([[float(word) for word in end] for end in words])
    except (KeyError, TypeError, ValueError):
        return None
    return bounds if bounds.size else None


def _number_types(data: Mapping[str, Any], key: str) -> set[str]:
    """The types of the numbers in a pickled array, such as f4."""
    try:
        words = {value for _, value in _instructions(data, key) if isinstance(value, str)}
    except (KeyError, TypeError, ValueError):
        return set()
    return {word for word in words if re.fullmatch("[fiu][1248]", word)}


def _instructions(data: Mapping[str, Any], key: str) -> Iterator[tuple[pickletools.OpcodeInfo, Any]]:
    """The instructions of a pickle in the JSON, which are not followed; an error if there are none to be read."""
    text = plain(data, key)[":serialized:"]
    if len(text) > MOST_PICKLED:
        raise ValueError("too large to be read instruction by instruction")
    stored = base64.b64decode(text)
    return ((operation, value) for operation, value, _ in pickletools.genops(stored))


def class_name(value: Any) -> str:
    """The full class name in <class 'a.b.C'>."""
    match = re.fullmatch(r"<class '([\w.<>]+)'>", str(value))
    return match[1] if match else str(value)
