from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
import rich.console

from tasks.runtime.open_platform import make_progress
from tasks.runtime.track.progress import (
    PlainLines,
    Progress,
    RichLines,
    StepReporter,
    outcome_of,
)
from tasks.runtime.track.tail import MetricLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    progress = make_progress(stream)
    stage = progress.stage("sft", 3)
    stage.update(2, "loss 1.5")
    stage.close()
    stage.close()
    progress.cached("base", "3f2a")
    first, done, *rest = stream.getvalue().splitlines()
    assert (first, rest) == ("sft: started", ["base: cached 3f2a"])
    assert re.fullmatch(r"sft: done in [0-9.]+ s 2/3 loss 1\.5", done)


def test_plain_lines_are_throttled() -> None:
    stream = io.StringIO()
    stage = Progress(PlainLines(stream, seconds=3600)).stage("sft", 100)
    for step in range(100):
        stage.update(step)
    assert stream.getvalue() == "sft: started\n"
    stage = Progress(PlainLines(stream, seconds=0)).stage("dpo", None)
    stage.update(7, "loss 0.5")
    assert stream.getvalue().endswith("dpo: 7 loss 0.5\n")


def test_what_comes_before_the_first_step_is_shown_at_once() -> None:
    stream = io.StringIO()
    stage = Progress(PlainLines(stream, seconds=3600)).stage("ledger", 4)
    stage.update(0, "trains again")
    stage.update(1, "step 3")
    assert stream.getvalue() == "ledger: started\nledger: 0/4 trains again\n"


def test_time_left_is_that_of_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first update on, which of a stage that goes on is not at step 0."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stage = Progress().stage("sft", 100)
    assert stage.left == ""
    stage.update(60)
    now[0] += 30
    assert stage.left == ""
    stage.update(70)
    assert stage.left == "2 min left"
    stage.close()
    assert stage.left == ""


def test_terminal_shows_one_line_for_each_stage() -> None:
    progress = make_progress(Terminal())
    (lines,) = progress.displays
    assert isinstance(lines, RichLines)
    lines.console = rich.console.Console(file=io.StringIO(), force_terminal=True, width=120)
    progress.cached("base")
    first, second = progress.stage("sft", 300), progress.stage("dpo", None)
    first.update(50, "loss 1.25, 3 steps/s")
    second.update(4)
    first.close()
    second.close("failed")
    file = lines.console.file
    assert isinstance(file, io.StringIO)
    shown = file.getvalue()
    for text in ("base", "cached", "sft", "50/300", "loss 1.25, 3 steps/s", "dpo", "failed"):
        assert text in shown
    assert shown.endswith("\x1b[?25h")  # the cursor is back: the display ended with its stages


def test_ctrl_c_cancels_a_stage_and_an_error_fails_it() -> None:
    assert outcome_of(KeyboardInterrupt()) == outcome_of(SystemExit(130)) == "cancelled"
    assert outcome_of(ValueError()) == "failed"
    stream = io.StringIO()
    Progress(PlainLines(stream)).stage("sft", 2).close(outcome_of(KeyboardInterrupt()))
    assert "sft: cancelled in" in stream.getvalue()


def test_reporter_shows_loss_and_speed() -> None:
    stream = io.StringIO()
    report = StepReporter(Progress(PlainLines(stream, seconds=0)).stage("sft", 10))
    report(MetricLine(1, 4, 100.0, {"train/loss": 2.0}))
    report(MetricLine(5, 20, 102.0, {"train/loss": 1.5}))
    report(MetricLine(6, 24, 102.5, {"train/margin": 1.0}))
    assert stream.getvalue().splitlines()[1:] == [
        "sft: 1/10 loss 2",
        "sft: 5/10 loss 1.5, 2 steps/s, 1 s left",
        "sft: 6/10 2 steps/s, 1 s left",
    ]


def test_importing_costs_no_service_package() -> None:
    program = (
        "import sys\n"
        "from tasks.runtime.track import progress, tail\n"
        "heavy = {'mlflow', 'prefect', 'torch', 'rich', 'requests', 'pydantic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
