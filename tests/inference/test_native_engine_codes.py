"""Packed codes: they unpack to what was packed, in any buffer, and damaged ones are refused."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.inference.form import Form, layer_arrays
from shoal.inference.int8_kernels import BITS, FIRST, SIZE, SQUASH, VERSION_AT
from shoal.inference.native_engine import header_of, open_codes, pack_codes, unpack_codes, verify_codes
from tests.inference.policies import few_bits, image_policy, observations, random_policy

SHAPES = [
    {},
    {"agents": 3, "observation": (6, 4, 5), "action": (4, 2, 3), "hidden": (33, 5)},
    {"agents": 2, "head": "gaussian", "normalised": True, "hidden": (16,)},
    {"one_hot": 7, "head": "box", "squash": "clip", "hidden": ()},
]


@pytest.mark.parametrize("bits", [4, 7, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_packed_codes_round_trip(shape, bits):
    policy = random_policy(**shape).played()
    buffer = pack_codes(policy, bits)
    verify_codes(buffer)
    assert not open_codes(buffer, header_of(policy, bits))[1].flags.writeable and buffer.flags.writeable
    assert buffer.ctypes.data % 64 == 0 and buffer.size % 64 == 0 and buffer.size == header_of(policy, bits)[SIZE]
    for layer, found in zip(policy.layers, unpack_codes(buffer, policy), strict=True):
        for name, array in layer_arrays(layer, Form("int8", bits), by_rows=True).items():
            assert np.array_equal(found[name], array) and found[name].dtype == array.dtype


def test_codes_are_packed_into_a_given_buffer():
    policy = random_policy(agents=2, head="gaussian")
    expected = pack_codes(policy, 7)
    place = np.full(expected.size + 128, 7, np.uint8)
    found = pack_codes(policy, 7, place[64:])
    assert np.shares_memory(found, place) and np.array_equal(found, expected)
    assert (place[:64] == 7).all() and (place[64 + expected.size :] == 7).all()
    verify_codes(place[64:])
    for wrong in (place[:100], place[1:], place.view(np.int8), np.zeros((4, 2 * expected.size), np.uint8)[:, ::2]):
        with pytest.raises(ValueError, match="contiguous bytes"):
            pack_codes(policy, 7, wrong)


def test_packed_size_is_close_to_the_weights():
    policy = random_policy(hidden=(512, 512), observation=(64,))
    assert policy.nbytes / pack_codes(policy).size > 3.7


def changed(buffer, word, value):
    other = buffer.copy()
    other.view(np.int64)[word] = value
    return other


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda b: b[:50], "too short"),
        (lambda b: b[:-64], "truncated"),
        (lambda b: np.concatenate([b[:1], b])[1:], "aligned to 8"),
        (lambda b: b"x" * b.size, "starts with other bytes"),
        (lambda b: changed(b, VERSION_AT, 1), "version 1"),
        (lambda b: changed(b, SIZE, 64), "other layers"),
        (lambda b: changed(b, FIRST, 5), "other layers"),
        (lambda b: changed(b, BITS, 9), "header is invalid"),
        (lambda b: changed(b, SQUASH, 3), "header is invalid"),
    ],
)
def test_damaged_codes_are_refused(damage, said):
    policy = random_policy()
    with pytest.raises(UserError, match=said):
        open_codes(damage(pack_codes(policy)), header_of(policy, 8))


def test_the_checksum_sees_every_byte():
    buffer = pack_codes(random_policy(hidden=(3,)))
    for at in range(buffer.size):
        other = buffer.copy()
        other[at] ^= 1 << at % 8
        with pytest.raises(UserError, match=r"truncated or damaged|checksum"):
            verify_codes(other)
    for size in (0, 7, 64, buffer.size - 64):
        with pytest.raises(UserError, match="truncated or damaged"):
            verify_codes(buffer[:size])


def test_unsupported_policies_cannot_be_packed():
    policy = random_policy()
    with pytest.raises(UserError, match="convolutions"):
        pack_codes(image_policy())
    with pytest.raises(UserError, match="native engine does not support frozen input grids"):
        pack_codes(few_bits(policy, observations(policy)))
    with pytest.raises(UserError, match="`bits` is 9"):
        pack_codes(policy, 9)
    with pytest.raises(UserError, match="65,537"):
        pack_codes(random_policy(hidden=(), observation=(2**16 + 1,)))
    broken = replace(policy.layers[0], bias=policy.layers[0].bias * np.nan)
    with pytest.raises(UserError, match="NaN"):
        pack_codes(replace(policy, layers=(broken, *policy.layers[1:])))
