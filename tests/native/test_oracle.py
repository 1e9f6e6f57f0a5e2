"""The native update equals torch's: every weight, target and moment of all agents, after one and after five updates.

In float64 to 1e-9, where rounding can hide no mistake, for the table of options that torch itself is tested with; in
float32 within rounding of float64.
"""

import numpy as np
import pytest
import torch

from shoal.algorithms import LearnConfig, make_team
from shoal.algorithms.minibatch import as_tensors
from shoal.algorithms.native import NativeTeam
from shoal.native.maddpg import ENTROPY, NEXT, OWN, REDRAWN
from shoal.native.program import padded
from shoal.native.work import MOMENT, SEED
from shoal.replay import Batch, Returns
from tests.algorithms.plain import precision_of_networks
from tests.algorithms.test_oracle import CHOICES, NUMBERS, covering, make_batch, make_spec
from tests.native.noise import fill_noise

CPU = torch.device("cpu")
ROWS = 40


class Clock:
    """A clock that nobody reads."""

    def __call__(self, phase):
        pass

    def divide(self, shares):
        self.shares = shares


def pair(spec, config, precision=np.float64, seed=0, threads=2):
    """The same team twice: in torch, and native."""
    with precision_of_networks(precision):
        team, native = make_team(spec, config, seed, CPU), NativeTeam(spec, config, seed, threads, precision)
    rng, weights = np.random.default_rng(seed), team.weights()
    for name, array in weights.items():  # biases, too, and targets that differ from online networks
        real = array != 0 if "first" in name or "weights" in name else True
        weights[name] = array + real * rng.normal(size=array.shape).astype(array.dtype) * 0.1
    for one in (team, native):
        one.load_weights(weights)
    return team, native


def native_noise(team, batch, precision):
    """The noise that the native update draws, as torch asks for it: next, entropy, redrawn, own actions."""
    algorithm, spec, config = team.algorithm, team.spec, team.config
    counters = team.counters
    masac_boxes = not spec.discrete and config.algorithm == "masac"
    uses = [NEXT, ENTROPY, REDRAWN, OWN]
    if not (masac_boxes and config.variant == "tf2"):
        uses.remove(ENTROPY)
    if config.others != "current":
        uses.remove(REDRAWN)
    queue = iter(uses)

    def noise(kind, shape):
        use = next(queue)
        out = np.zeros(shape, precision)
        minibatches = algorithm.minibatches if use in (NEXT, REDRAWN) else 1
        for i in range(shape[0]):
            for k, rows in enumerate(np.split(out[i], minibatches)):
                m = k if use in (NEXT, REDRAWN) else algorithm.own(i) if use == ENTROPY else 0
                moment = counters[MOMENT] + 1
                fill_noise(
                    rows, kind == "normal", counters[SEED], moment, algorithm.stream(use, i, m), padded(shape[2])
                )
        return torch.from_numpy(out)

    return noise


def agree(spec, config, precision=np.float64, tolerance=1e-9, updates=5, threads=2, several=False):
    """Update both on the same batches and noise, and compare everything."""
    torch_team, native_team = pair(spec, config, precision, threads=threads)
    rng = np.random.default_rng(3)
    m = 1 if config.minibatch == "shared" else spec.agents
    for update in range(updates):
        batch = rows_of(make_batch(rng, spec, m, precision), rng, several)
        torch_team.noise = native_noise(native_team, batch, precision)
        copy = type(batch)(*(array.copy() for array in batch))
        wanted = torch_team.learn(as_tensors(copy, spec, config.discount, CPU), lambda phase: None)
        losses = native_team.learn(batch, Clock())
        if update in (0, updates - 1):
            for name, loss in wanted.items():
                np.testing.assert_allclose(losses[name], loss.numpy(), atol=tolerance, rtol=tolerance)
            compare(torch_team, native_team, tolerance)


def rows_of(batch, rng, several):
    """The batch, or returns of several steps with the same rows."""
    if not several:
        return batch
    steps = rng.integers(1, 4, batch.copies.shape)
    return Returns(*batch, steps, batch.alive & ~batch.terminated & (rng.random(batch.alive.shape) < 0.9))


def compare(torch_team, native_team, tolerance):
    """Weights, targets, temperatures and Adam's moments."""
    for what in ("weights", "optimizer_state"):
        wanted, found = getattr(torch_team, what)(), getattr(native_team, what)()
        assert wanted.keys() == found.keys()
        for name, array in wanted.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_allclose(found[name], array, atol=tolerance, rtol=0, err_msg=name)


@pytest.mark.parametrize(
    "combination",
    [combination for choices in CHOICES.values() for combination in covering(choices)],
    ids=lambda combination: "-".join(map(str, combination.values())),
)
def test_combinations_of_options_match_torch(combination):
    options = dict(combination)
    world, unequal, fixed, n = (options.pop(name) for name in ("world", "unequal", "fixed", "agents"))
    spec = make_spec(n, world != "boxes", fixed, soft=world == "soft choices", unequal=unequal)
    agree(spec, LearnConfig(hidden=(16, 12), batch=32, **options))


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
@pytest.mark.parametrize("critic", ["joint", "pooled"])
@pytest.mark.parametrize("share", ["actors", "critics", "all"])
def test_only_agents_of_one_kind_share(algorithm, share, critic):
    """Of eight agents of six kinds the first and the seventh are alike, and the second and the eighth."""
    spec = make_spec(8, discrete=True, unequal=True)
    agree(spec, LearnConfig(algorithm=algorithm, share=share, critic=critic, hidden=(16, 12), batch=32, clip=0.05))


ALSO = [
    {"hidden": (33, 7), "critic_hidden": (40, 17, 9)},
    {"tau": 0.5, "target_period": 3},
    {"share": "all", "hidden": (33, 7), "clip_by": "network"},
    {"share": "all", "hidden": (20,), "n_step": 1},
    {"share": "all", "critic": "pooled", "hidden": (33, 7), "clip_by": "network"},
    {"critic": "pooled", "critic_hidden": (40, 17, 9), "first_layer": "dense"},
]


@pytest.mark.parametrize("options", [*NUMBERS, *ALSO], ids=str)
def test_number_options_match_torch(options):
    agree(make_spec(3, discrete=True), LearnConfig(**{"hidden": (16, 16), "batch": 32, **options}))


@pytest.mark.parametrize("fixed", [True, False])
def test_n_step_returns_match_torch(fixed):
    agree(make_spec(3, True, fixed), LearnConfig(hidden=(16, 12), batch=32, n_step=3), several=True)


@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
@pytest.mark.parametrize(("n", "rows"), [(1, 1), (2, 7), (65, 32), (2, 500)])
def test_numbers_of_agents_and_rows(monkeypatch, algorithm, n, rows):
    monkeypatch.setattr("tests.algorithms.test_oracle.ROWS", rows)
    agree(make_spec(n, True), LearnConfig(algorithm=algorithm, hidden=(12, 9), batch=rows), updates=2)


@pytest.mark.parametrize(("algorithm", "critic"), [("maddpg", "pooled"), ("masac", "joint")])
def test_shared_networks_on_rows_of_several_parts(monkeypatch, algorithm, critic):
    monkeypatch.setattr("tests.algorithms.test_oracle.ROWS", 500)
    agree(
        make_spec(5, True),
        LearnConfig(algorithm=algorithm, share="all", critic=critic, hidden=(12, 9), batch=500),
        updates=2,
    )


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("algorithm", ["maddpg", "masac"])
def test_float32_is_float64_within_rounding(algorithm, discrete):
    """One update of torch in float64 and one of native code in float32: Adam's moments, which are the gradients."""
    spec, config = make_spec(3, discrete), LearnConfig(algorithm=algorithm, hidden=(16, 12), batch=32)
    wide, narrow = pair(spec, config, np.float64)[0], pair(spec, config, np.float32)[1]
    batch = make_batch(np.random.default_rng(3), spec, 1, np.float32)
    double = Batch(*(x.astype(np.float64) if x.dtype == np.float32 else x.copy() for x in batch))
    wide.noise = native_noise(narrow, batch, np.float64)
    wide.load_weights({name: array.astype(np.float64) for name, array in narrow.weights().items()})
    wide.learn(as_tensors(double, spec, config.discount, CPU), lambda phase: None)
    narrow.learn(batch, Clock())
    for name, array in wide.optimizer_state().items():
        if "mean" in name:
            found = narrow.optimizer_state()[name]
            assert np.abs(found - array).max() < 2e-6 * max(1e-3, np.abs(array).max()) + 1e-9
