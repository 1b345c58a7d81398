from __future__ import annotations

import html
import json
import re
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dynolab.data.rows import read_rows, write_rows
from dynolab.data.unknown import UnknownTokens
from dynolab.errors import ConfigError
from dynolab.report.inputs.study import ReportInputs, StudyFacts
from dynolab.report.study.page import write_report
from dynolab.report.style import DARK, number, plotly_text, token_text, with_interval
from dynolab.results.study import PairChange, Training, TrainingSummary, read_training
from dynolab.statistics import Interval
from tests.report.parsed import check_figures, words_of
from tests.report.synthetic import study, token_map, training, world_answers


def written(folder: Path, inputs: ReportInputs, between: str = "") -> str:
    """The words of a report."""
    write_report(inputs, folder)
    return words_of(folder / "report.html", between)


def with_trainings(*trainings: Training) -> ReportInputs:
    return replace(study(), trainings=trainings)


def test_figures_hold_valid_json_and_known_colours(folder: Path) -> None:
    """A colour without a dark partner would stay light on a dark page."""
    assert len(set(DARK.values())) == len(DARK)
    assert check_figures(folder, "report.html") == 10


def test_summary_is_flat_finite_json(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    metrics = summary["metrics"]
    assert all(isinstance(value, float) for value in metrics.values())
    assert metrics["claims/appears"] == 12
    assert metrics["dpo/gap/change"] > 4
    assert next(iter(metrics)).startswith("dpo/")
    assert 0 <= metrics["force/dpo/unexplained"] < 0.1
    assert {verdict["outcome"] for verdict in summary["verdicts"]} == {"appears"}


def test_trainings_come_in_the_studys_order_whatever_their_objective(tmp_path: Path) -> None:
    inputs = with_trainings(
        training("rl", "grpo", forces=(), token_map=None), training("sft", "sft")
    )
    summary = write_report(inputs, tmp_path)
    assert summary["metrics"]["grpo/gap/change"] > 4
    stages = {verdict["id"].split("/")[0] for verdict in summary["verdicts"]}
    assert stages == {"grpo", "sft"}


def test_answers_are_counted_by_model_and_kind(tmp_path: Path) -> None:
    words = written(tmp_path, replace(study(), answers=world_answers()), "|")
    counted = words[words.index("borrowed phrases") :]
    row = counted[counted.index("DPO|held-out|20|") :].split("|")[:10]
    assert row[2:7] == ["20", "5.0 [0.9, 23.6]", "0.0 [0.0, 16.1]", "0.0 [0.0, 16.1]", "100"]
    assert row[7:10] == ["75.0 [53.1, 88.8]", "80.0 [49.0, 94.3]", "70.0 [39.7, 89.2]"]


def test_the_worst_pairs_stand_in_a_table_and_all_in_a_file(folder: Path, words: str) -> None:
    rows = list(read_rows(folder / "pairs.jsonl", PairChange))
    assert len(rows) == 26
    assert [row.chosen for row in rows] == sorted(row.chosen for row in rows)
    worst, tenth, eleventh = rows[0], rows[9], rows[10]
    for row in (worst, tenth):
        assert f"{row.pair_id}{row.prompt}{number(row.chosen, sign=True)}" in words
    assert f"{eleventh.pair_id}{eleventh.prompt}" not in words


def test_the_worst_pairs_map_is_a_command_for_a_shell(tmp_path: Path) -> None:
    dpo, name = study().trainings[-1], "it's; $(boom) ü\n"
    probes = tuple(
        row.model_copy(update={"pair_id": name}) for row in dpo.probes if row.pair_id == "q000"
    )
    write_report(with_trainings(replace(dpo, probes=probes)), tmp_path)
    command = re.search(
        '<pre class="command">(dynolab forces.*?)</pre>', (tmp_path / "report.html").read_text()
    )
    assert command is not None
    *start, _, analysis = shlex.split(html.unescape(command[1]))
    assert start == ["dynolab", "forces", "--set", "name=pair"]
    assert yaml.safe_load(analysis.removeprefix("analysis.pair_ids=")) == [name]


def test_a_training_without_pairs_has_no_table_of_them(tmp_path: Path) -> None:
    assert "Δ margin" not in written(tmp_path, with_trainings(training("sft", "sft")))
    assert not (tmp_path / "pairs.jsonl").exists()


def test_a_study_without_measurements_still_has_a_page(tmp_path: Path) -> None:
    empty = with_trainings(Training("sft", "sft"), Training("preference", "dpo"))
    summary = write_report(replace(empty, contrasts=(), answers=()), tmp_path)
    assert {verdict["outcome"] for verdict in summary["verdicts"]} == {"not measured"}
    assert "not measured" in (tmp_path / "report.html").read_text()
    assert write_report(ReportInputs(StudyFacts(name="nothing")), tmp_path)["verdicts"] == []


@pytest.mark.parametrize(
    "missing", ["probes", "metrics", "forces", "replay", "validity", "layers", "token_map"]
)
def test_a_missing_part_leaves_the_others(missing: str, tmp_path: Path) -> None:
    empty = None if missing == "token_map" else ()
    sft, dpo = study().trainings
    summary = write_report(with_trainings(sft, replace(dpo, **{missing: empty})), tmp_path)
    assert summary["metrics"]
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("character", "option"), [("’", """--set 'data.replace={"’": "\\u0027"}'"""), ("=", "TEXT")]
)
def test_what_the_tokenizer_does_not_know_can_be_replaced(
    character: str, option: str, tmp_path: Path
) -> None:
    *others, dpo = study().trainings
    unknown = UnknownTokens(30, 100, 10, 20, Counter({character: 30}))
    told = with_trainings(*others, replace(dpo, rows=unknown.as_metrics()))
    assert option in written(tmp_path, told)


@pytest.mark.parametrize("training", study().trainings, ids=lambda training: training.name)
def test_reads_what_the_stages_wrote(training: Training, tmp_path: Path) -> None:
    summary = TrainingSummary(steps=100, objective=training.stage, rows={})
    (tmp_path / "summary.json").write_text(summary.model_dump_json())
    write_rows(tmp_path / "probes.jsonl", training.probes)
    write_rows(tmp_path / "metrics.jsonl", training.metrics)
    write_rows(tmp_path / "forces.jsonl", training.forces)
    write_rows(tmp_path / "validity.jsonl", training.validity)
    write_rows(tmp_path / "layers.jsonl", training.layers)
    replay = [row.model_dump() for row in training.replay]
    (tmp_path / "replay.json").write_text(json.dumps(replay))
    if training.token_map is not None:
        (tmp_path / "token_map.json").write_text(training.token_map.model_dump_json())
    assert read_training(training.name, tmp_path, tmp_path) == training
    assert read_training(training.name, tmp_path).probes == training.probes


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("probes.jsonl", '\n{"step": "many"}\n', r"probes\.jsonl line 2.*pair_id"),
        (
            "token_map.json",
            token_map().model_copy(update={"force": [[1.0]]}).model_dump_json(),
            r"token_map\.force",
        ),
        (
            "summary.json",
            '{"steps": 1, "objective": "../<b>", "rows": {}}',
            r"summary\.json.*objective",
        ),
    ],
)
def test_a_bad_line_is_named(file: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"steps": 1, "objective": "dpo", "rows": {}}')
    (tmp_path / file).write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_training("x", tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [
        (4.1e-7, False, "4.1·10⁻⁷"),
        (-0.0589, True, "−0.0589"),
        (float("nan"), True, "–"),
        (123456.0, False, "123456"),
        (None, False, "–"),
        (0.9, True, "+0.900"),
    ],
)
def test_numbers(value: float | None, sign: bool, text: str) -> None:
    assert number(value, sign=sign) == text


def test_tokens_show_their_spaces() -> None:
    assert token_text("Ġthe") == "·the"
    assert token_text(" a\n") == "·a⏎"
    assert token_text("\x00") == "�"
    assert plotly_text("a<b>&") == "a&lt;b&gt;&amp;"
    assert len(token_text("x" * 50)) == 12


def test_one_value_has_no_interval() -> None:
    assert with_interval(Interval(0.98, float("nan"), float("nan"), 1)) == "+0.98"
    assert with_interval(Interval(0.98, 0.9, 1.06, 4)) == "+0.98 [+0.90, +1.06]"
