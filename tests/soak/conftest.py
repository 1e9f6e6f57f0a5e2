"""The size and the seed of a soak come from the command line; its figures are shown at the end."""

import pytest

from tests.soak.harness import Soak


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


def pytest_terminal_summary(terminalreporter):
    """What each soak did, passed or not."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    for report in reports:
        for name, figures in getattr(report, "user_properties", []):
            if name == "soak" and report.when == "call":
                terminalreporter.write_line(figures)
