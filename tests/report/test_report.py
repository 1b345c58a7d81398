"""The study's page holds its numbers, whatever was measured, and says what squeezing did."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynolab.data.rows import read_rows, write_rows
from dynolab.data.unknown import UnknownTokens
from dynolab.errors import ConfigError
from dynolab.evaluation.samples import repetition
from dynolab.report.inputs.study import ReportInputs, Squeezing, StudyFacts
from dynolab.report.page import Words
from dynolab.report.study.answers import repeater_section
from dynolab.report.study.learning_paths import squeezing_figure, training_figure
from dynolab.report.study.page import write_report
from dynolab.report.study.tables import forecast_section
from dynolab.report.style import DARK, number, plotly_text, token_text, with_interval
from dynolab.results.study import (
    AlarmRing,
    Generation,
    PairChange,
    RisenMass,
    Training,
    TrainingSummary,
    read_training,
)
from dynolab.statistics import Interval
from tests.report.parsed import Parsed, check_figures, words_of
from tests.report.synthetic import metrics, study, token_map, training, world_answers


def written(folder: Path, inputs: ReportInputs, between: str = "") -> str:
    """The words of a report."""
    write_report(inputs, folder)
    return words_of(folder / "report.html", between)


def with_trainings(*trainings: Training, **more: Any) -> ReportInputs:
    """A study of which nothing else is known."""
    facts = StudyFacts(name="bare", map_command="dynolab forces --set name=pair")
    return ReportInputs(facts, trainings=trainings, **more)


UNMEASURED = Training("sft", "sft"), Training("preference", "dpo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole report."""
    place = tmp_path_factory.mktemp("report")
    write_report(study(), place)
    return place


def test_runs_are_named_by_their_ids_and_links_stay_on_the_page(folder: Path) -> None:
    """Addresses of servers are of the day a page was made."""
    page = Parsed((folder / "report.html").read_text())
    assert "ab12" * 8 in "".join(page.words)
    assert {attributes["href"][0] for tag, attributes in page.elements if tag == "a"} == {"#"}


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


def test_answers_are_counted_by_model_and_kind(tmp_path: Path) -> None:
    words = written(tmp_path, with_trainings(*UNMEASURED, answers=world_answers()), "|")
    counted = words[words.index("borrowed phrases") :]
    row = counted[counted.index("DPO|held-out|20|") :].split("|")[:10]
    assert row[2:7] == ["20", "5.0 [0.9, 23.6]", "0.0 [0.0, 16.1]", "0.0 [0.0, 16.1]", "100"]
    assert row[7:10] == ["75.0 [53.1, 88.8]", "80.0 [49.0, 94.3]", "70.0 [39.7, 89.2]"]


def test_the_worst_pairs_stand_in_a_table_and_all_in_a_file(folder: Path) -> None:
    words = words_of(folder / "report.html")
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
    page = (tmp_path / "report.html").read_text()
    (command,) = re.findall('<pre class="command">(dynolab forces.*?)</pre>', page)
    *start, _, analysis = shlex.split(html.unescape(command))
    assert start == ["dynolab", "forces", "--set", "name=pair"]
    assert yaml.safe_load(analysis.removeprefix("analysis.pair_ids=")) == [name]


def test_a_training_without_pairs_has_no_table_of_them(tmp_path: Path) -> None:
    assert "Δ margin" not in written(tmp_path, with_trainings(training("sft", "sft")))
    assert not (tmp_path / "pairs.jsonl").exists()


def test_a_study_without_measurements_still_has_a_page(tmp_path: Path) -> None:
    summary = write_report(with_trainings(*UNMEASURED), tmp_path)
    assert {verdict["outcome"] for verdict in summary["verdicts"]} == {"not measured"}
    assert "not measured" in (tmp_path / "report.html").read_text()
    assert write_report(ReportInputs(StudyFacts(name="nothing")), tmp_path)["verdicts"] == []


@pytest.mark.parametrize(
    "missing", [("probes", "forces", "validity", "token_map"), ("metrics", "replay", "layers")]
)
def test_missing_parts_leave_the_others(missing: tuple[str, ...], tmp_path: Path) -> None:
    sft, dpo = study().trainings
    empty = {name: None if name == "token_map" else () for name in missing}
    assert write_report(with_trainings(sft, replace(dpo, **empty)), tmp_path)["metrics"]


@pytest.mark.parametrize(
    ("character", "option"), [("’", """--set 'data.replace={"’": "\\u0027"}'"""), ("=", "TEXT")]
)
def test_what_the_tokenizer_does_not_know_can_be_replaced(
    character: str, option: str, tmp_path: Path
) -> None:
    unknown = UnknownTokens(30, 100, 10, 20, Counter({character: 30}))
    told = with_trainings(Training("preference", "dpo", rows=unknown.as_metrics()))
    assert option in written(tmp_path, told)


@pytest.mark.parametrize("training", study().trainings, ids=lambda training: training.name)
def test_reads_what_the_stages_wrote(training: Training, tmp_path: Path) -> None:
    summary = TrainingSummary(steps=100, objective=training.stage, rows={})
    (tmp_path / "summary.json").write_text(summary.model_dump_json())
    for name in ("probes", "metrics", "forces", "validity", "layers"):
        write_rows(tmp_path / f"{name}.jsonl", getattr(training, name))
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


TITLES = {"sft": "SFT", "preference": "DPO"}


def mass(training: str, step: int, argmax: float, own: float) -> list[RisenMass]:
    return [
        RisenMass(
            training=training,
            step=step,
            pair_id=f"p{pair}",
            split="train",
            kind="chosen",
            tokens=5,
            risen=2.0,
            argmax=2 * argmax,
            own=2 * own,
        )
        for pair in range(4)
    ]


def foretold(step: int, auc: float) -> dict[str, Any]:
    fits = {"auc": auc, "auc_top": 0.7, "auc_last_layer": 0.8, "explained": 0.4}
    counts = {"tokens": 490, "foretold": 40, "rose": 60, "right": 430}
    return {"training": "preference", "step": step, "side": "rejected", **counts, **fits}


def generation(model: str, tokens: list[int]) -> Generation:
    return Generation(
        model=model, pair_id="p", split="heldout", finished=True, **dict(repetition(tokens))
    )


def rung(name: str, auc: float) -> dict[str, Any]:
    measured = {"auc": auc, "right": auc, "flow": 0.002, "flow_measured": 0.004}
    return {"training": "preference", "side": "rejected", "rung": name, **measured}


def found() -> Squeezing:
    return Squeezing(
        (
            *mass("sft", 5, 0.3, 0.9),
            *mass("preference", 5, 0.5, 0.2),
            *mass("preference", 9, 0.75, 0.1),
        ),
        (foretold(0, 0.81), foretold(5, 0.93)),
        (generation("sft", [1, 2, 3, 4, 5]), generation("preference", [1, 2] * 5)),
    )


def test_the_figure_has_every_training_in_which_something_rose() -> None:
    figure = squeezing_figure(found(), TITLES)
    assert figure is not None
    lines = [trace for trace in figure.plot.data if trace.name == "y* at the start"]
    assert [list(line.y) for line in lines] == [[0.3], [0.5, 0.75]]
    flat = [row.model_copy(update={"risen": 0.0, "argmax": 0.0}) for row in mass("sft", 1, 0, 0)]
    assert squeezing_figure(Squeezing(tuple(flat)), TITLES) is None
    assert squeezing_figure(Squeezing(), TITLES) is None


def test_dynamic_learning_rates_are_drawn_where_a_training_logged_them() -> None:
    trainings = [Training("sft", "sft", metrics=metrics("sft", 5))]
    without = training_figure(trainings)
    assert without is not None
    assert len(without.plot.data) == 1  # the loss
    trainings = [Training("dpo", "dpo", metrics=metrics("dpo", 5))]
    figure = training_figure(trainings)
    assert figure is not None
    (rates,) = [trace for trace in figure.plot.data if trace.name == "median"]
    logged = [line.metrics["train/dynamic_learning_rate/q50"] for line in trainings[0].metrics]
    assert list(rates.y) == pytest.approx(logged, abs=1e-4)


def test_predictions_have_a_row_for_every_step_and_part() -> None:
    rungs = [rung("logits", auc) for auc in (0.6, 0.8)]
    words = Words("study.html")
    section = forecast_section(replace(found(), ladder=rungs), TITLES, words)
    assert section is not None
    told = "|".join(Parsed(section.markup).words)
    assert "DPO|5|rejected|8.2 %|12 %|88 %|0.93|0.7|0.8|0.4" in told
    assert "DPO|rejected|one softmax|0.7|0.7|0.002|0.004" in told
    assert forecast_section(Squeezing(), TITLES, words) is None


def test_repeaters_are_counted() -> None:
    section = repeater_section(found().generations, TITLES, Words("study.html"))
    assert section is not None
    told = "|".join(Parsed(section.markup).words)
    assert "SFT|1|0.0 [" in told and "DPO|1|100.0 [" in told
    assert repeater_section((), TITLES, Words("study.html")) is None


def test_the_summary_has_the_index_and_the_page_the_alarm(tmp_path: Path) -> None:
    ring = AlarmRing(step=40, gap=27.25, rise=5.25, stopped=True)
    rung = Training("preference", "dpo", alarm=ring)
    inputs = with_trainings(Training("sft", "sft"), rung, squeezing=found())
    means = write_report(inputs, tmp_path)["means"]
    assert means["squeeze/index/preference"] == {"mean": 0.75, "low": 0.75, "high": 0.75, "n": 4}
    assert "5.25" in words_of(tmp_path / "report.html")
