"""`shoal.train` from Python: the run folder has what the command's has, pictures included."""

from shoal import TrainConfig, train

SHORT = TrainConfig(
    episodes=20, copies=5, warmup=100, batch=16, hidden=(8,), evaluate_episodes=4, threads=1, tensorboard=False
)


def test_the_learning_curve_is_drawn_and_can_be_left_out(tmp_path):
    import dataclasses

    def run(name, **how):
        result = train(dataclasses.replace(SHORT, out=str(tmp_path / name)), **how)
        assert result.finished and result.return_random is not None
        return {path.name for path in (tmp_path / name).iterdir()}

    assert run("with") - run("without", pictures=False) == {"curve.png"}
    (tmp_path / "with" / "curve.png").unlink()
    train(TrainConfig(out=str(tmp_path / "with")), resume=True)
    assert not (tmp_path / "with" / "curve.png").exists()  # it was finished: nothing is written
