"""The native engine against int8 in plain numpy and in ONNX Runtime, alone, in batches, and in others' memory."""

from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.inference import make_engine
from shoal.inference.grid import safe_bits
from shoal.inference.int8_kernels import AVX2, ROWS, available
from shoal.inference.layers import ACTIVATIONS
from shoal.inference.native_engine import NativeEngine, pack_codes
from shoal.inference.onnx_engine import OnnxEngine
from tests.inference.policies import image_policy, observations, random_policy
from tests.inference.simulated import int8_outputs
from tests.inference.test_engine import SHAPES, noise_for

BATCH = ROWS + 5
EXACT = ("relu", "leaky-relu", "none", "clip-2")


def alone(engine, x, noise=None):
    noise = [None] * len(x) if noise is None else noise[:, None]
    return np.concatenate([engine.act(row[None], drawn).copy() for row, drawn in zip(x, noise, strict=True)])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_outputs_match_numpy(activation):
    """To the last bit where numpy has the same function; elsewhere a code may be its neighbour."""
    for seed, hidden in enumerate([(5,), (16, 3), (33, 64, 17), ()]):
        policy = random_policy(seed, 2, hidden, (9, 3), (5,), "box", activation=activation)
        policy = replace(policy, head=replace(policy.head, squash="none"))
        x = observations(policy, BATCH)
        for bits, kind in [(bits, kind) for bits in (4, 7, 8) for kind in available() if kind != AVX2 or bits < 8]:
            engine, expected = NativeEngine(policy), int8_outputs(policy, x, bits)
            engine.load_codes(pack_codes(policy, bits))
            engine._kind = kind
            together = engine.act(x).copy()
            assert np.array_equal(alone(engine, x), together)
            if activation in EXACT:
                assert np.array_equal(together, expected)
            else:
                wrong = np.abs(together - expected) > 1e-5
                assert wrong.mean() < 0.02 and np.abs(together - expected).max() < 0.1


@pytest.mark.parametrize("shape", SHAPES)
def test_actions_match_onnx_runtime(shape):
    for seed in range(2):
        policy = random_policy(seed, **shape)
        x, noise = observations(policy, BATCH, seed), noise_for(policy, BATCH)
        native, onnx = NativeEngine(policy), OnnxEngine(policy, "int8", batch=BATCH)
        together, expected = native.act(x, noise).copy(), onnx.act(x, noise)
        assert together.dtype == expected.dtype and np.array_equal(alone(native, x, noise), together)
        if policy.head.discrete:
            assert np.array_equal(together, expected)
        else:
            assert np.abs(together - expected).max() < (1e-5 if policy.layers[0].activation in EXACT else 0.1)


def test_scaled_and_normalised_inputs():
    policy = replace(random_policy(head="box", normalised=True), scale_image=True)
    x = 255 * observations(policy)
    assert np.abs(NativeEngine(policy).act(x) - OnnxEngine(policy, "int8").act(x)).max() < 1e-5


@pytest.mark.parametrize("squash", ["none", "clip", "tanh"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_affects_only_its_own_row(activation, squash):
    policy = random_policy(agents=2, head="box", squash=squash, activation=activation)
    x, engine = observations(policy, 6), NativeEngine(policy)
    clean = engine.act(x).copy()
    for value in (np.nan, np.inf, -np.inf):
        broken = x.copy()
        broken[2, 1, 3] = value
        actions = engine.act(broken).copy()
        assert np.isnan(actions[2, 1]).all()
        actions[2, 1] = clean[2, 1]
        assert np.array_equal(actions, clean)


def test_of_equal_choices_the_first_is_taken():
    policy = random_policy()
    last = replace(policy.layers[-1], weight=policy.layers[-1].weight * 0, bias=np.float32([[1, 2, 2, 0]]))
    policy = replace(policy, layers=(*policy.layers[:-1], last))
    x = observations(policy, 3)
    assert (NativeEngine(policy).act(x) == 1).all() and (OnnxEngine(policy, "int8").act(x) == 1).all()


def test_weights_are_read_in_place():
    policies = [random_policy(seed, agents=2, head="gaussian", normalised=True) for seed in (0, 1)]
    x = observations(policies[0], 3)
    fresh = [NativeEngine(policy).act(x).copy() for policy in policies]
    packed = [pack_codes(policy) for policy in policies]
    engine, slot = NativeEngine(policies[0]), np.zeros(packed[0].size, np.uint8)
    slot[:] = packed[0]
    engine.load_codes(slot)
    assert np.array_equal(engine.act(x), fresh[0])
    slot[:] = packed[1]
    assert np.array_equal(engine.act(x), fresh[1])
    engine.load(policies[0])
    assert np.array_equal(engine.act(x), fresh[0]) and engine.nbytes == slot.size


def test_codes_in_shared_memory_and_in_bytes():
    policy, other = random_policy(0, head="box"), random_policy(1, head="box", squash="clip")
    x, expected = observations(policy, 3), NativeEngine(other).act(observations(policy, 3))
    packed = pack_codes(other)
    memory = SharedMemory(create=True, size=packed.size + 4096)
    try:
        engine = NativeEngine(policy)
        pack_codes(other, out=np.frombuffer(memory.buf, np.uint8))
        engine.load_codes(memory.buf.toreadonly())
        assert np.array_equal(engine.act(x), expected)
        engine.load_codes(packed.tobytes())
        assert np.array_equal(engine.act(x), expected)
    finally:
        memory.close()
        memory.unlink()


def test_refused_codes_do_not_change_the_engine():
    policy = random_policy(head="box")
    x, engine = observations(policy, 3), NativeEngine(policy)
    before = engine.act(x).copy()
    for wrong in (b"", pack_codes(policy)[:-64], pack_codes(random_policy(head="box", hidden=(8,))), bytes(10_000)):
        with pytest.raises(UserError):
            engine.load_codes(wrong)
        assert np.array_equal(engine.act(x), before)


@pytest.mark.parametrize(
    "shape", [{"agents": 2, "head": "gaussian"}, {"agents": 2, "hidden": (192, 192), "head": "box"}]
)
def test_the_same_codes_in_onnx_runtime(shape):
    old, new = (random_policy(seed, **shape) for seed in (0, 1))
    new = replace(new, head=old.head)
    x, engine = observations(old, 3), OnnxEngine(old, "int8")
    engine.act(x[:1])
    engine.load_codes(pack_codes(new))
    fresh = OnnxEngine(new, "int8")
    for rows in (x[:1], x):  # the second one in a graph that is not yet made
        assert np.array_equal(engine.act(rows), fresh.act(rows))
    engine.load(old)
    assert np.array_equal(engine.act(x), OnnxEngine(old, "int8").act(x))
    with pytest.raises(UserError, match="another normaliser or box"):
        engine.load_codes(pack_codes(random_policy(1, **shape)))
    with pytest.raises(UserError, match="packed codes are for int8"):
        OnnxEngine(old).load_codes(pack_codes(new))


def test_codes_with_too_many_bits_for_onnx_runtime(monkeypatch):
    policy = random_policy()
    engine = OnnxEngine(policy, "int8")
    monkeypatch.setattr("shoal.inference.onnx_engine.safe_bits", lambda: 7)
    with pytest.raises(UserError, match="have 8 bits, but this engine takes up to 7 here"):
        engine.load_codes(pack_codes(policy, 8))


def test_the_choice_of_an_engine():
    policy = random_policy()
    assert make_engine(policy, "native", "int8").name == "native"
    assert make_engine(policy, "auto", "int8").name in ("native", "onnx")
    assert make_engine(image_policy(), "auto", "int8").name == "onnx"
    assert make_engine(random_policy(hidden=(), observation=(2**16 + 1,)), "auto", "int8").name == "onnx"
    with pytest.raises(UserError, match="convolutions"):
        make_engine(image_policy(), "native", "int8")
    with pytest.raises(UserError, match="does not support the precision 'float32'"):
        make_engine(policy, "native")
    assert NativeEngine(policy).nbytes == pack_codes(policy, safe_bits()).size
