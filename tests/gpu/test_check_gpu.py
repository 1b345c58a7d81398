"""`make check-gpu` where there is no GPU: the programs run, and what they cannot tell is listed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.check import __main__ as checks
from tests.gpu.check.every import CHECKS
from tests.gpu.check.outcome import Check, Ended, Figure, judge
from tests.gpu.compiled_guard import compiler


def check(*figures: Figure) -> Check:
    whole = {
        "name": "check",
        "asserts": "It holds.",
        "figures": figures,
        "measure": lambda folder: {},
        "stand_in": "pretended GPU",
    }
    return Check.model_validate(whole)


SMALL = Figure(name="error", means="an error", at_most=0.1)
LARGE = Figure(name="speed", means="a speed", at_least=2.0, needs_gpu=True)
MANY = Figure(name="scaling", means="on two GPUs", at_least=0.5, needs_gpu=True, gpus=2)
PLAIN = Figure(name="rate", means="a rate")


def verdicts(ended: Ended | None, gpus: int) -> dict[str, tuple[str, str]]:
    judged = judge(check(SMALL, LARGE, MANY, PLAIN), ended, gpus)
    return {each.figure.name: (each.verdict, each.reason) for each in judged.outcomes}


def test_verdicts_on_machines_with_gpus_and_without() -> None:
    values = {"error": 0.2, "speed": 3.0, "scaling": 0.6, "rate": 1.0}
    ended = Ended(values=values, seconds=1)
    two = {"error": "missed", "speed": "met", "scaling": "met", "rate": "measured"}
    assert verdicts(ended, 2) == {name: (verdict, "") for name, verdict in two.items()}
    assert verdicts(ended, 1)["scaling"] == ("not run", "1 of 2 GPUs")
    none = verdicts(ended, 0)
    assert none["speed"] == none["scaling"] == ("not run", "no GPU")
    assert none["error"] == ("missed", "") and none["rate"] == ("measured", "")
    assert set(verdicts(None, 0).values()) == {("not run", "no GPU")}


def test_a_check_that_ends_early_misses_what_it_did_not_measure() -> None:
    ended = Ended(values={"error": float("nan")}, seconds=1, error="it crashed")
    assert verdicts(ended, 0) == {
        "error": ("missed", ""),
        "speed": ("missed", "it crashed"),
        "scaling": ("not run", "no GPU"),
        "rate": ("missed", "it crashed"),
    }


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import time; time.sleep(60)", "it took longer than 0.5 s"),
        ("import os; os.abort()", "its process ended with code -6"),
    ],
)
def test_a_process_that_hangs_or_crashes_ends_its_check_alone(
    program: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = subprocess.run

    def other(command: list[str], **options: object) -> object:
        return run([sys.executable, "-c", program], **options)

    monkeypatch.setattr(subprocess, "run", other)
    (tmp_path / "figures.json").write_text(json.dumps({"error": 0.0}))
    ended = checks.ended([], tmp_path, 0.5)
    assert ended.error == reason and ended.values == {"error": 0.0}


def test_what_is_not_begun_in_time_is_not_run(tmp_path: Path) -> None:
    judged = checks.run(check(SMALL), tmp_path, None, -1.0)
    assert judged.outcomes[0].reason == "20 minutes are over"


def test_every_check_names_its_figures_and_what_it_asserts() -> None:
    for each in CHECKS.values():
        names = [figure.name for figure in each.figures]
        assert len(set(names)) == len(names)
        assert each.asserts.endswith(".")


@pytest.mark.services
@pytest.mark.ranks
@pytest.mark.timeout(2 * checks.LIMIT_SECONDS)
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler for the pretended GPU")
@pytest.mark.parametrize(
    ("names", "met"),
    [
        pytest.param(("products", "exchange"), 6, id="some"),
        pytest.param(tuple(CHECKS), 25, id="all", marks=pytest.mark.study),
    ],
)
def test_without_a_gpu_programs_run_and_every_figure_of_one_is_listed(
    names: tuple[str, ...], met: int, tmp_path: Path
) -> None:
    environment = os.environ | {"DYNOLAB_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.check", *names],
        env=environment | {"DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    found = json.loads((tmp_path / "reports" / "gpu.json").read_text())
    assert [each["name"] for each in found["checks"]] == list(names)
    outcomes = [outcome for each in found["checks"] for outcome in each["outcomes"]]
    for outcome in outcomes:
        needs_gpu = outcome["figure"]["needs_gpu"]
        assert outcome["verdict"] in (("not run",) if needs_gpu else ("met", "measured")), outcome
        assert outcome["reason"] == ("no GPU" if needs_gpu else "")
    assert found["missed"] == 0 and found["met"] >= met
    page = (tmp_path / "reports" / "gpu.html").read_text()
    assert all(outcome["figure"]["name"] in page for outcome in outcomes)
    assert page.count("not run: no GPU") == found["not_run"]
