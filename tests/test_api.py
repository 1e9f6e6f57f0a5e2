"""`shoal.train` from Python: the run folder has what the command's has, pictures included."""

import dataclasses

import pytest

from shoal import TrainConfig, train
from shoal.training.checkpoint import Checkpoints

SHORT = TrainConfig(
    episodes=20, copies=5, warmup=100, batch=16, hidden=(8,), evaluate_episodes=4, threads=1, tensorboard=False
)


@pytest.mark.pictures
def test_the_learning_curve_is_drawn_and_can_be_left_out(tmp_path):
    def run(name, **how):
        result = train(dataclasses.replace(SHORT, out=str(tmp_path / name)), **how)
        assert result.finished and result.return_random is not None
        return {path.name for path in (tmp_path / name).iterdir()}

    assert run("with") - run("without", pictures=False) == {"curve.png"}
    drawn = (tmp_path / "with" / "curve.png").stat()
    assert drawn.st_size > 5_000
    train(TrainConfig(out=str(tmp_path / "with")), resume=True)
    assert (tmp_path / "with" / "curve.png").stat() == drawn  # it was finished: nothing is written


@pytest.mark.parametrize("keep_replay", [False, True])
def test_a_run_that_was_killed_at_its_end_is_completed_when_it_is_resumed(tmp_path, monkeypatch, keep_replay):
    config = dataclasses.replace(SHORT, out=str(tmp_path), checkpoint_every=5, keep_replay=keep_replay)
    with monkeypatch.context() as killed:
        killed.setattr(Checkpoints, "keep_newest", lambda self: None)
        result = train(config, pictures=False)
    checkpoints = tmp_path / "checkpoints"
    assert len(list(checkpoints.glob("0*"))) == 2 and (checkpoints / "replay").exists()
    assert train(TrainConfig(out=str(tmp_path)), resume=True) == result
    assert [path.name for path in checkpoints.glob("0*")] == ["00000020"] and (tmp_path / "curve.png").exists()
    assert (checkpoints / "replay").exists() == keep_replay
    if keep_replay:
        assert Checkpoints(checkpoints).load(pytest.fail).segments
