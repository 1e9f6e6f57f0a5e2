"""Every engine against plain numpy; one state alone and in a batch; other weights in a running engine; the choice."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.inference import engine, make_engine
from shoal.inference.engine import KINDS, fastest
from shoal.inference.file import PolicyFile, sealed
from shoal.inference.form import Form
from shoal.inference.graph import build
from shoal.inference.grid import safe_bits
from shoal.inference.layers import ACTIVATIONS
from shoal.inference.onnx_engine import OnnxEngine, template
from shoal.inference.runtime import audit
from shoal.quantization.torch_engine import TorchEngine
from tests.inference.policies import few_bits, image_policy, observations, random_policy
from tests.inference.simulated import int8_outputs

SHAPES = [
    {},
    {"agents": 3, "observation": (6, 4, 5), "action": (4, 2, 3)},
    {"agents": 2, "head": "box", "normalised": True},
    {"head": "gaussian", "activation": "tanh"},
    {"head": "box", "squash": "clip", "activation": "elu"},
    {"head": "box", "activation": "leaky-relu", "observation": (1,), "hidden": (5,)},
    {"one_hot": 7, "head": "box", "activation": "sigmoid"},
    {"head": "categorical", "agents": 2},
    {"agents": 2, "hidden": (192, 192), "head": "box"},  # large enough for products of their own
    {"agents": 3, "head": "gaussian", "network_of": (0, 0, 0)},
    {"agents": 4, "observation": (6, 4), "action": (4, 2), "network_of": (0, 1, 0, 1)},
    {"agents": 3, "head": "categorical", "one_hot": 7, "network_of": (1, 0, 0)},
]
TOLERANCE = {"float32": 1e-5, "float16": 3e-3}


def noise_for(policy, batch):
    return np.random.default_rng(2).random((batch, policy.agents, policy.action_size)).astype(np.float32)


@pytest.mark.parametrize("batch", [1, 33])
@pytest.mark.parametrize(("name", "precision"), KINDS[:3])
@pytest.mark.parametrize("shape", SHAPES)
def test_engines_act_as_the_reference(shape, name, precision, batch):
    policy = random_policy(**shape)
    x, noise = observations(policy), noise_for(policy, 33)
    engine = make_engine(policy, name, precision, batch=batch)
    actions, expected = engine.act(x, noise), policy.reference(x, noise)
    assert actions.dtype == expected.dtype
    if policy.head.discrete:
        assert (actions == expected).mean() > (0.999 if precision == "float32" else 0.97)
    else:
        assert np.abs(actions - expected).max() < TOLERANCE[precision]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_int8_is_batch_invariant_at_every_width(activation):
    """ONNX Runtime computes the last few numbers of an array in another way than the rest."""
    for seed in range(8):
        policy = random_policy(seed, 1, (3 + seed, 5), (3,), (3,), "box", "clip", activation)
        x, engine = observations(policy, 64, seed), make_engine(policy, "onnx", "int8")
        together = engine.act(x).copy()
        assert np.array_equal(np.concatenate([engine.act(x[b : b + 1]).copy() for b in range(64)]), together)


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_matches_numpy_alone_and_in_a_batch(shape):
    for seed in range(3):
        policy = random_policy(seed, **shape).played()
        x, noise = observations(policy, seed=seed), noise_for(policy, 33)
        engine = make_engine(policy, "onnx", "int8")
        together = engine.act(x, noise).copy()
        alone = np.concatenate([engine.act(x[b : b + 1], noise[b : b + 1]).copy() for b in range(33)])
        assert np.array_equal(alone, together)
        expected = policy.act_on(int8_outputs(policy, x, safe_bits()), noise)
        if policy.head.discrete:
            assert np.array_equal(together, expected)
        else:
            assert np.abs(together - expected).max() < (1e-5 if policy.layers[0].activation == "relu" else 0.1)


def test_int8_never_saturates():
    """All inputs and weights as large as they get: pairs of products are beyond 16 bits unless weights have 7."""
    policy = random_policy(head="box", squash="none", hidden=(64,), observation=(64,))
    layers = tuple(replace(layer, weight=np.ones_like(layer.weight), bias=0 * layer.bias) for layer in policy.layers)
    policy = replace(policy, layers=layers)
    for batch in (1, 5):
        x = np.full((batch, 1, 64), 3.0, np.float32)
        assert np.allclose(make_engine(policy, "onnx", "int8").act(x), 3.0 * 64 * 64, rtol=1e-3)


def test_all_zero_state():
    policy = random_policy(agents=2, head="box", hidden=(8,))
    layers = tuple(replace(layer, bias=0 * layer.bias) for layer in policy.layers)
    policy = replace(policy, layers=layers)
    middle = (policy.head.low + policy.head.high) / 2
    for name, precision in KINDS:
        for batch in (1, 4):
            actions = make_engine(policy, name, precision).act(np.zeros((batch, 2, 6), np.float32))
            assert np.allclose(actions, middle, atol=1e-6)


@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(("name", "precision"), KINDS)
def test_other_weights_in_a_running_engine(name, precision, batch, framed):
    """`framed`: the normaliser and the box stay as they were."""
    old, new = (random_policy(seed, agents=2, head="gaussian", normalised=True) for seed in (0, 1))
    if framed:
        new = replace(new, normaliser=old.normaliser, head=old.head)
    x = observations(old, 8)
    engine = make_engine(old, name, precision, batch=batch)
    before = [engine.act(x).copy(), engine.act(x[:1]).copy()]
    engine.load(new)
    fresh = make_engine(new, name, precision, batch=batch)
    for was, rows in zip(before, (x, x[:1]), strict=True):
        assert np.array_equal(engine.act(rows), fresh.act(rows))
        assert not np.allclose(engine.act(rows), was, atol=1e-3)
    with pytest.raises(UserError, match="different layers"):
        engine.load(random_policy(agents=2, head="gaussian", hidden=(8,)))


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(("name", "precision"), KINDS)
def test_new_normaliser_or_box_in_a_running_engine(name, precision, batch):
    """The new weights come with a normaliser, or a box, of a kind that the old ones did not have."""
    plain, normalised = random_policy(head="box"), random_policy(1, head="box", normalised=True)
    clipped = random_policy(2, head="box", squash="clip")
    x = observations(plain, 8)
    for old, new in ((plain, normalised), (normalised, plain), (plain, clipped)):
        engine = make_engine(old, name, precision, batch=batch)
        engine.act(x)
        engine.load(new)
        assert np.array_equal(engine.act(x), make_engine(new, name, precision, batch=batch).act(x))
    engine = make_engine(random_policy(agents=2, action=(4, 2)), name, precision, batch=batch)
    with pytest.raises(UserError, match="create a new engine"):
        engine.load(random_policy(agents=2, action=(4, 3)))


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(("name", "precision"), KINDS)
def test_damaged_weights_do_not_change_a_running_engine(name, precision, batch):
    policy = random_policy(head="box")
    x, first = observations(policy, 8), policy.layers[0]
    engine = make_engine(policy, name, precision, batch=batch)
    before = engine.act(x).copy()
    weight = first.weight.copy()
    weight[0, 2, 3] = np.nan
    for damaged, reason in ((replace(first, weight=weight), "NaN"), (replace(first, bias=first.bias[:, :1]), "biases")):
        with pytest.raises(UserError, match=reason):
            engine.load(replace(policy, layers=(damaged, *policy.layers[1:])))
        assert np.array_equal(engine.act(x), before)


def test_weights_up_to_the_largest_numbers_are_finite():
    policy = random_policy()
    huge = replace(policy.layers[0], weight=np.full_like(policy.layers[0].weight, 3e38))
    make_engine(replace(policy, layers=(huge, *policy.layers[1:])), "numba")


def test_other_strides_need_a_new_engine():
    policy = image_policy()
    a, b, *rest = policy.layers
    other = replace(policy, layers=(replace(a, stride=(1, 1)), replace(b, stride=(2, 2)), *rest))
    for running in (make_engine(policy, "onnx"), TorchEngine(policy)):
        with pytest.raises(UserError, match="create a new engine"):
            running.load(other)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_frozen_weights_in_a_running_engine(precision, batch):
    old, new = (random_policy(seed, agents=2, head="box", squash="none") for seed in (0, 1))
    x = observations(old, 8)
    old, new = few_bits(old, x), few_bits(new, x)
    engine = make_engine(old, "auto", precision, batch=batch)
    for policy in (old, new):
        engine.load(policy)
        expected = policy.reference(x, dtype=np.float32)
        assert np.abs(engine.act(x) - expected).mean() < 0.01 * np.ptp(expected)
    with pytest.raises(UserError, match="numba engine does not support frozen input grids"):
        make_engine(old, "numba")
    with pytest.raises(UserError, match="torch engine does not support frozen input grids"):
        TorchEngine(old)


@pytest.mark.parametrize(("name", "precision"), KINDS)
def test_weights_in_any_order_in_memory(name, precision):
    policy = random_policy(head="box")
    turned = replace(policy, layers=tuple(replace(k, weight=np.asfortranarray(k.weight)) for k in policy.layers))
    x = observations(policy, 1)
    assert np.array_equal(make_engine(turned, name, precision).act(x), make_engine(policy, name, precision).act(x))


@pytest.mark.parametrize(("name", "precision"), KINDS)
def test_wrong_observations_are_refused(name, precision):
    engine = make_engine(random_policy(agents=2), name, precision)
    for shape in ((1, 2, 5), (1, 1, 6), (2, 6), (0, 2, 6)):
        with pytest.raises(UserError, match="but the policy takes"):
            engine.act(np.zeros(shape, np.float32))


@pytest.mark.parametrize(("name", "precision"), KINDS)
def test_noise_dtype_is_free_and_shape_is_checked(name, precision):
    policy = random_policy(agents=2, head="categorical")
    engine, x, noise = make_engine(policy, name, precision), observations(policy, 5), noise_for(policy, 5)
    assert np.array_equal(engine.act(x, noise.astype(np.float64)).copy(), engine.act(x, noise))
    for shape in ((5, 2, 3), (1, 2, 4), (5, 4)):
        with pytest.raises(UserError, match="The noise has the shape"):
            engine.act(x, np.full(shape, 0.5, np.float32))


def test_drawn_choices_differ_and_follow_given_noise():
    policy = random_policy(head="categorical")
    layers = (*policy.layers[:-1], replace(policy.layers[-1], weight=0 * policy.layers[-1].weight))
    policy = replace(policy, layers=layers)
    x = np.zeros((400, 1, 6), np.float32)
    for name in ("numba", "onnx"):
        engine = make_engine(policy, name)
        first, second = engine.act(x).copy(), engine.act(x).copy()
        assert not np.array_equal(first, second) and np.bincount(first[:, 0]).min() > 40


@pytest.mark.parametrize(("name", "precision"), KINDS[:3])
def test_flat_images_are_scaled_before_they_are_normalised(name, precision):
    policy = replace(random_policy(head="box", normalised=True), scale_image=True)
    x = 255 * observations(policy)
    assert np.abs(make_engine(policy, name, precision).act(x) - policy.reference(x)).max() < TOLERANCE[precision]


def test_single_states_run_in_the_fused_product():
    policy = random_policy(agents=2, hidden=(192, 192))
    engine = OnnxEngine(policy, "int8")
    assert list(engine._sides) == [True]
    counted = audit(build(policy, engine._sides[True].form).SerializeToString())
    assert counted.nodes == {"DynamicQuantizeMatMul": 6}


def test_of_equal_choices_the_first_is_taken():
    policy = random_policy(agents=2, action=(4, 3))
    last = policy.layers[-1]
    policy = replace(policy, layers=(*policy.layers[:-1], replace(last, weight=0 * last.weight, bias=0 * last.bias)))
    for name, precision in KINDS:
        for batch in (1, 3):
            assert not make_engine(policy, name, precision).act(observations(policy, batch)).any()


def test_bytes_shrink_with_the_precision():
    policy = random_policy(hidden=(64, 64))
    sizes = {precision: make_engine(policy, "onnx", precision).nbytes for precision in ("float32", "float16", "int8")}
    assert sizes["float32"] == policy.nbytes
    assert sizes["float16"] < 0.56 * policy.nbytes and sizes["int8"] < 0.45 * policy.nbytes


def test_template_has_no_weights():
    policy = random_policy(hidden=(64, 64))
    for precision in ("float32", "float16", "int8"):
        data, names = template(policy, Form(precision, 7))
        assert len(data) < 8_000 and {"layer0.weight.0", "layer2.bias.0"} <= set(names)


def test_engines_on_images():
    policy = image_policy()
    x = observations(policy)
    for precision in ("float32", "float16", "int8"):
        actions = make_engine(policy, "auto", precision).act(x)
        assert (actions == policy.reference(x)).mean() > 0.9
    with pytest.raises(UserError, match="convolutions"):
        make_engine(policy, "numba")


class Timed:
    """An engine that takes a known time, on a clock that only it moves."""

    now = 0.0

    def __init__(self, name, seconds):
        self.name, self.precision, self.seconds = name, "float32", seconds

    def act(self, observation, noise=None):
        Timed.now += self.seconds


def test_fastest_engine_is_chosen_and_ties_keep_order(monkeypatch):
    monkeypatch.setattr(engine.time, "perf_counter", lambda: Timed.now)
    policy = random_policy()
    slow, fast, equal = Timed("slow", 0.004), Timed("fast", 0.0005), Timed("equal", 0.000499)
    assert fastest([slow, fast], policy, 1) is fast
    assert fastest([fast, slow, equal], policy, 1) is fast
    assert fastest([equal, slow, fast], policy, 1) is equal


def test_auto_keeps_the_requested_precision():
    policy = random_policy()
    assert make_engine(policy, "auto", "float32").precision == "float32"
    assert make_engine(policy, "auto", "int8").precision == "int8"
    x = observations(policy)
    assert (make_engine(policy, "auto", "auto", batch=33).act(x) == policy.reference(x)).mean() > 0.9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "tvm"}, "'tvm' is not known"),
        ({"precision": "int3"}, "'int3' is not known"),
        ({"name": "numba", "precision": "int8"}, "does not support the precision 'int8'"),
        ({"threads": 0}, "`threads` is 0"),
        ({"batch": 0}, "`batch` is 0"),
    ],
)
def test_wrong_engines_are_refused(arguments, said):
    with pytest.raises(UserError, match=said):
        make_engine(random_policy(), **arguments)
    with pytest.raises(UserError, match="int3"):
        OnnxEngine(random_policy(), "int3")


@pytest.mark.parametrize("head", ["argmax", "categorical"])
def test_engines_and_files_never_choose_what_a_mask_forbids(tmp_path, head):
    policy = replace(random_policy(agents=2, observation=(9, 6), action=(4, 2), head=head), masked=True).check()
    x, noise = observations(policy, 200), noise_for(policy, 200)
    x[..., :4] = np.random.default_rng(3).random((200, 2, 4)) < 0.5
    x[:, 0, 3] = x[:, 1, 0] = 1
    expected = policy.reference(x, noise, np.float32)
    path = tmp_path / "policy.onnx"
    path.write_bytes(sealed(build(policy, Form()).SerializeToString()))
    players = {"torch": TorchEngine(policy), "file": PolicyFile(path)}
    players |= {" ".join(kind): make_engine(policy, *kind) for kind in KINDS}
    for name, player in players.items():
        actions = player.act(x, noise)
        assert np.take_along_axis(x[..., :4], actions[..., None], -1).all()
        assert (actions == expected).mean() >= (0.9 if "8" in name else 0.99 if "16" in name else 1), name
    assert not (expected == replace(policy, masked=False).reference(x, noise, np.float32)).all()
    with pytest.raises(UserError, match="no room for their action masks"):
        replace(random_policy(), masked=True, observation_sizes=(4,)).check()
    with pytest.raises(UserError, match="choices do not fit"):
        replace(random_policy(), choices=((3, 2),)).check()
