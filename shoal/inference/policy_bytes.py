"""A policy as bytes, to be sent or stored: no pickle, no code.

    "shoal policy"   12 bytes
    format           4 bytes, little-endian
    SHA-256          32 bytes, of what follows; detects damage, not tampering
    safetensors      the arrays; the text "policy" in its metadata is the rest as JSON, with the arrays' names

Reading never allocates more than the bytes justify: every size in the JSON is compared with the arrays.
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

MAGIC, BYTES_FORMAT = b"shoal policy", 1
HEADER = struct.Struct(f"<{len(MAGIC)}sI32s")
TYPES = {"F32": np.float32, "I32": np.int32}
Arrays = dict[str, NDArray[Any]]


def written(policy: Policy) -> bytes:
    """The policy as bytes; a `UserError` if its metadata is not JSON."""
    arrays: Arrays = {}
    description = _taken_apart(policy, "policy", arrays)
    try:
        text = json.dumps(description, default=_plain)
    except (TypeError, ValueError) as error:
        raise UserError(f"The policy's metadata cannot be written as JSON: {error}.") from None
    return sealed(safetensors.numpy.save(arrays, {"policy": text}))


def read(data: bytes) -> Policy:
    """The policy that `written` wrote, validated; a `UserError` for any other bytes."""
    data = bytes(data)
    if len(data) < HEADER.size or not data.startswith(MAGIC):
        raise UserError("The bytes are not a policy that Policy.to_bytes wrote.")
    _, number, digest = HEADER.unpack_from(data)
    if number != BYTES_FORMAT:
        raise UserError(
            f"The policy's bytes have format {number}, but this version of Shoal reads format {BYTES_FORMAT}."
        )
    content = data[HEADER.size :]
    if hashlib.sha256(content).digest() != digest:
        raise UserError("The policy's bytes are damaged (wrong checksum); fetch them again from their source.")
    try:
        description, arrays = _parsed(content)
        policy: Policy = _put_together(Policy, description, arrays)
        whole = not arrays
    except (safetensors.SafetensorError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        whole = False
    if not whole:
        raise UserError("The policy's bytes are damaged: their header cannot be read.")
    return policy.check()


def sealed(content: bytes) -> bytes:
    """The content with magic number, format and checksum."""
    return HEADER.pack(MAGIC, BYTES_FORMAT, hashlib.sha256(content).digest()) + content


def _parsed(content: bytes) -> tuple[Any, Arrays]:
    """The policy's description, and its arrays."""
    size = int.from_bytes(content[:8], "little")
    description = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["policy"])
    views = safetensors.deserialize(content)  # which checks every size against the bytes
    return description, {
        name: np.frombuffer(view["data"], TYPES[view["dtype"]]).reshape(view["shape"]).copy() for name, view in views
    }


def _taken_apart(value: Any, name: str, arrays: Arrays) -> Any:
    """A value as JSON; arrays are collected separately, named by their position."""
    if isinstance(value, np.ndarray):
        arrays[name] = np.ascontiguousarray(value, np.float32 if value.dtype.kind == "f" else np.int32)
        return name
    if is_dataclass(value):
        parts = [part.name for part in fields(value)]
        described = {part: _taken_apart(getattr(value, part), f"{name}.{part}", arrays) for part in parts}
        return {"type": type(value).__name__, **described}
    if isinstance(value, tuple):
        return [_taken_apart(element, f"{name}.{k}", arrays) for k, element in enumerate(value)]
    return dict(value) if isinstance(value, Mapping) else value


def _put_together(hint: Any, value: Any, arrays: Arrays) -> Any:
    """A value of the declared type; a ValueError, TypeError or KeyError if it is not one."""
    allowed = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None and NoneType in allowed:
        return None
    choices = [choice for choice in allowed if choice is not NoneType]
    if is_dataclass(choices[0]):
        kind = {choice.__name__: choice for choice in choices}[value["type"]]
        hints = get_type_hints(kind)
        named = {name: part for name, part in value.items() if name != "type"}  # earlier versions had fewer
        return kind(**{name: _put_together(hints[name], part, arrays) for name, part in named.items()})
    (hint,) = choices
    origin, inside = get_origin(hint), get_args(hint)
    if origin is np.ndarray and arrays[value].dtype != np.float32:
        raise TypeError(value)
    if hint is Any or origin is np.ndarray:  # a grid's arrays may have either dtype
        return arrays.pop(value)
    if origin is tuple and isinstance(value, list):
        each = inside[:1] * len(value) if inside[-1] is Ellipsis else inside
        return tuple(_put_together(kind, element, arrays) for kind, element in zip(each, value, strict=True))
    if origin is Literal and value in inside:
        return value
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is (dict if origin is Mapping else hint):
        return value
    raise TypeError(value)


def _plain(value: Any) -> Any:
    """numpy scalars as JSON numbers."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"it holds a value of type '{type(value).__name__}'")
