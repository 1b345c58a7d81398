"""Benchmarks let each go first in turn, and end badly where a bar is missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.faults import figures_of
from tests.benchmarks.figures import interleaved, ratio, report


@pytest.mark.parametrize(
    ("at_least", "at_most", "code"),
    [
        ({"speed": 2.0}, {"lost": 0}, 0),
        ({"speed": 2.5}, {"lost": 0}, 1),
        ({"speed": 2.0}, {"lost": -1}, 1),
        ({"speed": 2.0, "same": True}, {"not measured": 0}, 0),
        ({}, {"late": 10}, 1),
    ],
)
def test_a_missed_bar_ends_a_benchmark_badly(
    at_least: dict[str, float],
    at_most: dict[str, float],
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = {"speed": 2.00001, "lost": 0, "same": True, "late": None}
    with pytest.raises(SystemExit) as ended:
        report(figures, at_least=at_least, at_most=at_most)
    assert int(ended.value.code or 0) == code
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    bars = printed.pop("bars")
    assert printed == figures | {"speed": 2.0}
    assert bars.keys() == (at_least | at_most).keys() - {"not measured"}
    assert all(met for _, met in bars.values()) == (code == 0)


def test_each_goes_first_in_turn() -> None:
    calls: list[str] = []
    works = [lambda name=name: calls.append(name) for name in "abc"]
    times = interleaved(*works, repeats=3)
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab"
    assert [len(each) for each in times] == [3, 3, 3]


def test_a_ratio_is_taken_round_by_round() -> None:
    assert ratio("speed", [2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == {"speed": 3.0, "speed_spread": 2.0}


def test_faults_without_metrics_are_not_counted_as_looked_at(tmp_path: Path) -> None:
    report_file = tmp_path / "report.xml"
    properties = {
        "with": {"fault": "a rank is killed", "orphans": 0, "metrics_lost": 2},
        "without": {"fault": "the store hangs", "orphans": 0},
    }
    cases = "".join(
        f'<testcase name="{name}"><properties>'
        + "".join(f'<property name="{key}" value="{value}"/>' for key, value in known.items())
        + "</properties></testcase>"
        for name, known in properties.items()
    )
    report_file.write_text(f"<testsuite>{cases}</testsuite>")
    figures = figures_of(report_file)
    assert figures["faults_injected"] == 2
    assert (figures["metrics_lost"], figures["metrics_looked_at"]) == (2, 1)
