"""Benchmarks let each go first in turn, and end badly where a bar is missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.faults import figures_of
from tests.benchmarks.figures import interleaved, read_tests, real_inputs, report


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


def test_faults_without_metrics_are_not_counted_as_looked_at() -> None:
    cases = """<testsuite>
      <testcase name="with"><properties><property name="fault" value="a rank is killed"/>
        <property name="orphans" value="0"/><property name="metrics_lost" value="2"/>
      </properties></testcase>
      <testcase name="without"><properties><property name="fault" value="the store hangs"/>
      </properties><failure/></testcase>
      <testcase name="no fault"/><testcase name="not here"><skipped/></testcase></testsuite>"""
    figures = figures_of(read_tests(cases))
    assert (figures["faults_injected"], figures["faults_survived"]) == (2, 1)
    assert (figures["metrics_lost"], figures["metrics_looked_at"]) == (2, 1)
    assert figures["faults_skipped"] == 1


def test_inputs_that_are_missing_end_a_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DYNOLAB_TEST_DATA", raising=False)
    with pytest.raises(SystemExit, match="DYNOLAB_TEST_DATA"):
        real_inputs("models/small")
    monkeypatch.setenv("DYNOLAB_TEST_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="models/small"):
        real_inputs("models/small")
    assert real_inputs(".") == [tmp_path]
