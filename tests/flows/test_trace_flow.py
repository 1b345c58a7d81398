"""The trace of a behaviour: which rows moved it, and trainings without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dynolab.data.rows import Example, read_rows, read_value
from dynolab.errors import ConfigError
from dynolab.results.trace import TracedModel, TracedRow, TraceSummary
from flows.trace import FLOW
from tests.flows.analysed import Analysed
from tests.flows.in_process import short, step_names


@pytest.fixture(scope="module")
def behaviour(analysed: Analysed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rejected answers to questions that the training is on, against chosen ones."""
    rows = list(read_rows(analysed.folder(analysed.data) / "train.jsonl", Example))[:6]
    file = tmp_path_factory.mktemp("behaviour") / "behaviour.jsonl"
    lines = [{"prompt": row.prompt, "unwanted": row.rejected, "wanted": row.chosen} for row in rows]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def planned(analysed: Analysed, behaviour: Path, **settings: Any):  # type: ignore[no-untyped-def]
    more = {"trained": short(analysed.sft), "behaviour": str(behaviour), **settings}
    return analysed.plan(FLOW, more)


def test_rows_are_ranked_and_left_out(analysed: Analysed, behaviour: Path) -> None:
    plan = planned(analysed, behaviour, leave_out=2)
    assert [name for name in step_names(plan) if name.startswith("without-")] == [
        "without-lines",
        "without-words",
        "without-random",
    ]
    results = analysed.run_plan(plan)
    assert results["ledger"].metrics["ledger/closure"] < 1e-5
    folder = analysed.folder(results["trace"])
    rows = list(read_rows(folder / "trace.jsonl", TracedRow))
    assert [row.nats for row in rows] == sorted((row.nats for row in rows), reverse=True)
    summary = read_value(folder / "trace.json", TraceSummary)
    models = {}
    for name in ("start", "trained", "lines"):
        tested = analysed.folder(results[f"behaviour-{name}"])
        models[name] = read_value(tested / "behaviour.json", TracedModel)
    # The ledger's contrasts are the models' own.
    for split, first in (("train", 0), ("heldout", 1)):
        for name, value in (("start", summary.start[split]), ("trained", summary.end[split])):
            contrasts = models[name].contrast[first::2]
            assert sum(contrasts) / len(contrasts) == pytest.approx(value, abs=1e-4)
    left = list(read_rows(analysed.folder(results["rows-lines"]) / "train.jsonl", Example))
    everything = list(read_rows(analysed.folder(analysed.data) / "train.jsonl", Example))
    assert {row.id for row in everything} - {row.id for row in left} == {row.id for row in rows[:2]}
    page = analysed.text(results["trace-page"], "trace.html")
    changes = json.loads(analysed.text(results["trace-page"], "summary.json"))["changes"]
    lines, without = models["lines"].contrast[1::2], models["trained"].contrast[1::2]
    expected = sum(a - b for a, b in zip(lines, without, strict=True)) / len(lines)
    assert changes["lines"]["mean"] == pytest.approx(expected)
    assert 'id="models"' in page and rows[0].id in page


@pytest.mark.parametrize(
    ("lines", "field"),
    [
        ([], "behaviour"),
        ([{"prompt": "p", "unwanted": "a", "wanted": " a"}] * 4, "behaviour line 1"),
        ([{"prompt": "p", "unwanted": "a"}] * 4, "behaviour.jsonl line 1"),
    ],
)
def test_a_bad_file_is_refused_before_anything_runs(
    analysed: Analysed, tmp_path: Path, lines: list[dict[str, str]], field: str
) -> None:
    file = tmp_path / "behaviour.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError) as error:
        planned(analysed, file)
    assert error.value.field == field


def test_a_prompt_beyond_the_context_is_refused_by_name(analysed: Analysed, tmp_path: Path) -> None:
    line = {"prompt": "where is it " * 200, "unwanted": "a", "wanted": "b"}
    file = tmp_path / "behaviour.jsonl"
    file.write_text((json.dumps(line) + "\n") * 4)
    with pytest.raises(ConfigError, match="prompt-0000"):
        analysed.run_plan(planned(analysed, file))
