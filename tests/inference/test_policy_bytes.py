"""Policies as bytes: everything comes back; damage, and whatever a wrong writer may say, is met with a sentence."""

import dataclasses
import hashlib
import json
import struct

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.inference import Exploration, Policy, make_engine
from shoal.inference.layers import ACTIVATIONS
from shoal.inference.policy_bytes import BYTES_FORMAT, HEADER, MAGIC, sealed
from tests.inference.policies import few_bits, image_policy, observations, random_policy

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def policies(draw):
    """Any policy that can be."""
    seed = draw(st.integers(0, 99))
    if draw(st.integers(0, 4)) == 0:
        policy = image_policy(seed, draw(st.sampled_from(("relu", "elu"))))
    else:
        agents = draw(st.integers(1, 3))
        kind, one_hot = (
            draw(st.sampled_from(("argmax", "categorical", "box", "gaussian"))),
            draw(st.sampled_from((0, 5))),
        )
        policy = random_policy(
            seed, agents, draw(st.sampled_from(((), (3,), (5, 4)))), (4, 2, 3), (3, 1, 2), kind,
            draw(st.sampled_from(("tanh", "clip", "none"))), draw(st.sampled_from(ACTIVATIONS)),
            not one_hot and draw(st.booleans()), one_hot,
        )  # fmt: skip
    if policy.normaliser is not None and draw(st.booleans()):
        policy = dataclasses.replace(policy, normaliser=dataclasses.replace(policy.normaliser, clip=float("inf")))
    if draw(st.booleans()):
        policy = few_bits(policy, observations(policy, 6), draw(st.integers(2, 8)))
    exploration = draw(st.none() | st.builds(Exploration, st.floats(0, 2), st.booleans()))
    metadata = draw(st.dictionaries(st.text(max_size=6), json_values, max_size=3))
    return dataclasses.replace(policy, exploration=exploration, metadata=metadata).check()


def assert_same(one, other, where="policy"):
    """Equal in every field, arrays in every bit."""
    assert type(one) is type(other), where
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes(), where
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name), f"{where}.{field.name}")
    elif isinstance(one, tuple):
        assert len(one) == len(other), where
        for k, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{where}.{k}")
    else:
        assert one == other, where


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policies())
def test_policy_round_trips_through_bytes(policy):
    data = policy.to_bytes()
    again = Policy.from_bytes(data)
    assert_same(policy, again)
    assert again.to_bytes() == data
    assert all(layer.weight.flags.writeable for layer in again.layers)


def test_deserialized_policy_acts_identically():
    policy = random_policy(agents=2, head="gaussian", normalised=True)
    x = observations(policy)
    again = Policy.from_bytes(bytearray(policy.to_bytes()))
    assert np.array_equal(make_engine(policy, "numba").act(x), make_engine(again, "numba").act(x))


WHOLE = few_bits(random_policy(agents=2, head="gaussian", normalised=True, hidden=(4,)), np.ones((3, 2, 6), np.float32))
WHOLE = dataclasses.replace(WHOLE, exploration=Exploration(0.1), metadata={"env": "chess"})
BYTES = WHOLE.to_bytes()


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused(data):
    kind = data.draw(st.sampled_from(("flipped", "cut", "longer", "moved", "foreign")))
    place = data.draw(st.integers(0, len(BYTES) - 1))
    damaged = bytearray(BYTES)
    if kind == "flipped":
        damaged[place] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del damaged[place:]
    elif kind == "longer":
        damaged += data.draw(st.binary(min_size=1, max_size=40))
    elif kind == "moved":
        damaged.insert(place, data.draw(st.integers(0, 255)))
        del damaged[-1]
        if bytes(damaged) == BYTES:
            return
    else:
        damaged = data.draw(st.binary(max_size=200))
    with pytest.raises(UserError) as refused:
        Policy.from_bytes(bytes(damaged))
    assert str(refused.value).count(". ") == 0 and str(refused.value).endswith(".")


def play_or_refuse(content):
    """What a wrong writer sealed is refused with a sentence, or is a policy that can be played."""
    try:
        policy = Policy.from_bytes(sealed(content))
    except UserError as refused:
        assert "\n" not in str(refused) and str(refused).endswith(".")
        return False
    x = np.zeros((2, policy.agents, policy.observation_size), np.float32)
    policy.reference(x, np.full((2, policy.agents, policy.action_size), 0.5))
    return True


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_damage_with_a_valid_checksum_is_refused(data):
    content = bytearray(BYTES[HEADER.size :])
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with np.errstate(all="ignore"):
        play_or_refuse(bytes(content))


def rewritten(policy, change):
    """The content with other JSON in it."""
    content = policy.to_bytes()[HEADER.size :]
    size = struct.unpack_from("<Q", content)[0]
    said = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["policy"])
    said = change(said)
    return safetensors.numpy.save(safetensors.numpy.load(content), {"policy": json.dumps(said)})


def places(said, before=()):
    """The way to every value in JSON."""
    inner = said.items() if isinstance(said, dict) else enumerate(said) if isinstance(said, list) else ()
    for key, value in inner:
        yield (*before, key)
        yield from places(value, (*before, key))


def put(said, way, value):
    """The JSON with another value at one place."""
    said = json.loads(json.dumps(said))
    inside = said
    for key in way[:-1]:
        inside = inside[key]
    inside[way[-1]] = value
    return said


ODD = (None, True, -1, 0, 3, 2**40, 1.5, float("nan"), float("inf"), "", "box", "policy.head.low", [], [2, 2], {}, [[]])


@pytest.mark.parametrize("policy", [WHOLE, image_policy(), random_policy(one_hot=5)], ids=["whole", "image", "one-hot"])
def test_malformed_headers_are_refused(policy):
    said = []
    rewritten(policy, lambda own: said.append(own) or own)
    ways = [way for way in places(said[0]) if "metadata" not in way]
    refused = 0
    for k, way in enumerate(ways):
        for value in ODD[k % 4 :: 4]:  # a quarter of them at each place
            with np.errstate(all="ignore"):
                refused += not play_or_refuse(rewritten(policy, lambda own, way=way, value=value: put(own, way, value)))
    assert refused > 0.85 * len(ways) * len(ODD) / 4
    for other in ([], "policy", None, {"type": "Policy"}, {"type": "Linear"}):
        assert not play_or_refuse(rewritten(policy, lambda own, other=other: other))


def test_missing_extra_and_wrong_arrays_are_refused():
    content = BYTES[HEADER.size :]
    arrays, text = safetensors.numpy.load(content), {"policy": ""}
    rewritten(WHOLE, lambda own: text.update(policy=json.dumps(own)))
    assert play_or_refuse(safetensors.numpy.save(arrays, text))
    name = "policy.layers.0.weight"
    for changed in (
        {key: value for key, value in arrays.items() if key != name},
        arrays | {"more": np.zeros(3, np.float32)},
        arrays | {name: arrays[name].astype(np.float64)},
        arrays | {name: arrays[name].astype(np.int32)},
        arrays | {name: arrays[name][0]},
        arrays | {name: arrays[name][:, :0]},
        arrays | {name: np.full_like(arrays[name], np.nan)},
        arrays | {"policy.layers.0.quantized.weight.scale": np.zeros((2, 1, 4), np.float32)},
        arrays | {"policy.layers.0.quantized.input.zero_point": np.full((2, 1, 1), 16, np.int32)},
        arrays | {"policy.normaliser.mean": np.zeros((2, 5), np.float32)},
    ):
        assert not play_or_refuse(safetensors.numpy.save(changed, text))
    deep = {"policy": "[" * 100_000}
    assert not play_or_refuse(safetensors.numpy.save(arrays, deep))
    huge = b'{"x":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    assert not play_or_refuse(struct.pack("<Q", len(huge)) + huge)
    assert not play_or_refuse(struct.pack("<Q", 2**63) + huge)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a policy that"),
        (b"\x08\x0a\x12\x05shoal" * 20, "not a policy that"),
        (MAGIC + b"1", "not a policy that"),
        (HEADER.pack(MAGIC, BYTES_FORMAT + 1, bytes(32)), "format 2, but this version of Shoal reads format 1"),
        (HEADER.pack(MAGIC, BYTES_FORMAT, bytes(32)), "wrong checksum"),
        (HEADER.pack(MAGIC, BYTES_FORMAT, hashlib.sha256(b"").digest()), "cannot be read"),
    ],
)
def test_foreign_bytes_are_refused(data, said):
    with pytest.raises(UserError, match=said):
        Policy.from_bytes(data)


def test_metadata_must_be_json():
    policy = dataclasses.replace(random_policy(), metadata={"seed": np.int64(3), "sizes": (1, 2)})
    assert Policy.from_bytes(policy.to_bytes()).metadata == {"seed": 3, "sizes": [1, 2]}
    with pytest.raises(UserError, match="metadata cannot be written as JSON: it holds a value of type 'object'"):
        dataclasses.replace(policy, metadata={"x": object()}).to_bytes()
