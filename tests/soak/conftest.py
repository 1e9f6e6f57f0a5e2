"""The size and the seed of a soak come from the command line; its figures are shown at the end."""

import signal

import pytest

from tests.soak.harness import Shoal, Soak

RUN = (
    "--episodes 12 --copies 2 --episode-length 5 --warmup 20 --batch 8 --hidden 4 --update-every 5 "
    "--evaluate-episodes 2 --checkpoint-every 3 --log-every 3 --threads 1 --quiet"
).split()
"""The smallest run with everything in it: updates, several checkpoints, a ring, evaluation."""


@pytest.fixture
def soak(request, record_property):
    option = request.config.getoption
    return Soak(
        request.path.stem,
        option("--soak-scale"),
        option("--soak-seed"),
        option("--soak-case"),
        lambda figures: record_property("soak", figures),
    )


@pytest.fixture(scope="session")
def shoal_process():
    """Commands run in a process that is kept for many of them."""
    shoal = Shoal()
    yield shoal
    shoal.close()


@pytest.fixture(scope="session")
def material(tmp_path_factory, shoal_process):
    """A folder with a finished run, a stopped one, an exported policy, a zip and a profile, to be copied from."""
    from shoal.cli import main
    from shoal.training import loop
    from tests.cli.helpers import call_before, send
    from tests.policies import zips

    folder = tmp_path_factory.mktemp("material")
    for line in (
        ["train", *RUN, "--out", "run"],
        ["export", "run", "--out", "policy.onnx"],
        "profile --agents 2 --seconds 0.05 --ring 1024 --implementation engine --threads 1 --out profile".split(),
    ):
        ended = shoal_process.run(line, folder, 300)
        assert ended.code == 0, ended
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with pytest.MonkeyPatch.context() as patch:
        call_before(patch, loop.Training, "step", lambda: send(signal.SIGTERM), at=20)
        assert main(["train", *RUN, "--out", str(folder / "stopped")]) == 128 + signal.SIGTERM
    for number, handler in before.items():
        signal.signal(number, handler)
    zips.saved(zips.make("ppo", "CartPole-v1"), folder / "model.zip")
    (folder / "bare").mkdir()
    (folder / "bare" / "config.json").write_bytes((folder / "run" / "config.json").read_bytes())
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("buy milk\n")
    return folder


def pytest_terminal_summary(terminalreporter):
    """What each soak did, passed or not."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    for report in reports:
        for name, figures in getattr(report, "user_properties", []):
            if name == "soak" and report.when == "call":
                terminalreporter.write_line(figures)
