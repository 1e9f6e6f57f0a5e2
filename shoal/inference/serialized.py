"""A policy as bytes, to be sent to another process or kept: no pickle, no code, everything checked when it is read.

    "shoal policy"   12 bytes
    format           4 bytes, little-endian
    SHA-256          32 bytes, of what follows: against damage, not against malice
    safetensors      the arrays; the text "policy" in its metadata is the rest as JSON, with the arrays' names in it

Nothing that is read asks for memory beyond these bytes: every size in the JSON is compared with the arrays.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from shoal.errors import UserError
from shoal.inference.policy import Policy

MAGIC, FORMAT = b"shoal policy", 1
HEADER = struct.Struct(f"<{len(MAGIC)}sI32s")
TYPES = {"F32": np.float32, "I32": np.int32}

Arrays = dict[str, NDArray[Any]]


def to_bytes(policy: Policy) -> bytes:
    """The whole policy."""
    arrays: Arrays = {}
    said = _taken_apart(policy, "policy", arrays)
    try:
        text = json.dumps(said, default=_plain)
    except (TypeError, ValueError) as error:
        raise UserError(f"The policy's metadata cannot be written as JSON: {error}.") from None
    content = safetensors.numpy.save(arrays, {"policy": text})
    return sealed(content)


def from_bytes(data: bytes) -> Policy:
    """The policy that was written; a `UserError` for damaged bytes and for others."""
    content = _opened(bytes(data))
    try:
        said, arrays = _parsed(content)
        policy = _put_together(Policy, said, arrays)
        whole = not arrays
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        whole = False
    if not whole:
        raise UserError("The policy's bytes are damaged: what they say about themselves cannot be read.")
    return policy.check()


def sealed(content: bytes) -> bytes:
    """The content with what a reader checks first."""
    return HEADER.pack(MAGIC, FORMAT, hashlib.sha256(content).digest()) + content


def _opened(data: bytes) -> bytes:
    """The content, found to be as it was sealed."""
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise UserError("The bytes are not a policy's: Policy.to_bytes writes those.")
    _, number, digest = HEADER.unpack_from(data)
    if number != FORMAT:
        raise UserError(f"The policy's bytes have format {number}, but this version of Shoal reads format {FORMAT}.")
    content = data[HEADER.size :]
    if hashlib.sha256(content).digest() != digest:
        raise UserError("The policy's bytes are damaged (wrong checksum): get them again from where they were written.")
    return content


def _parsed(content: bytes) -> tuple[Any, Arrays]:
    """What the policy says about itself, and its arrays."""
    size = int.from_bytes(content[:8], "little")
    said = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["policy"])
    arrays: Arrays = {}
    for name, view in safetensors.deserialize(content):  # which checks every size against the bytes that are there
        arrays[name] = np.frombuffer(view["data"], TYPES[view["dtype"]]).reshape(view["shape"]).copy()
    return said, arrays


def _taken_apart(value: Any, name: str, arrays: Arrays) -> Any:
    """A value as JSON has it; arrays are put aside under the names of their places."""
    if isinstance(value, np.ndarray):
        arrays[name] = np.ascontiguousarray(value, np.float32 if value.dtype.kind == "f" else np.int32)
        return name
    if is_dataclass(value):
        parts = {part.name: getattr(value, part.name) for part in fields(value)}
        own = {part: _taken_apart(held, f"{name}.{part}", arrays) for part, held in parts.items()}
        return {"type": type(value).__name__, **own}
    if isinstance(value, tuple):
        return [_taken_apart(element, f"{name}.{k}", arrays) for k, element in enumerate(value)]
    return dict(value) if isinstance(value, Mapping) else value


def _put_together(hint: Any, value: Any, arrays: Arrays) -> Any:
    """A value of the type that its place declares; a ValueError, TypeError or KeyError if it is not one."""
    choices = [choice for choice in _choices(hint) if choice is not NoneType]
    if value is None and NoneType in _choices(hint):
        return None
    if is_dataclass(choices[0]):
        kind = {choice.__name__: choice for choice in choices}[value["type"]]
        hints = get_type_hints(kind)
        if value.keys() != {"type", *hints}:
            raise KeyError(kind.__name__)
        return kind(**{name: _put_together(hints[name], value[name], arrays) for name in hints})
    (hint,) = choices
    origin, inside = get_origin(hint), get_args(hint)
    if origin is np.ndarray and arrays[value].dtype != np.float32:
        raise TypeError(value)
    if hint is Any or origin is np.ndarray:  # a grid's arrays are of either type
        return arrays.pop(value)
    if origin is tuple and isinstance(value, list):
        each = inside[:1] * len(value) if inside[-1] is Ellipsis else inside
        return tuple(_put_together(own, element, arrays) for own, element in zip(each, value, strict=True))
    if origin is Literal and value in inside:
        return value
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is (dict if origin is Mapping else hint):
        return value
    raise TypeError(value)


def _choices(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _plain(value: Any) -> Any:
    """numpy's numbers as JSON has them."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"it holds a value of type '{type(value).__name__}'")
