from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dynolab.data.rows import read_rows
from dynolab.errors import ConfigError
from dynolab.probes.paths import learning_paths
from dynolab.report.inputs.study import (
    ReportInputs,
    StudyFacts,
    Training,
    read_training,
)
from dynolab.report.study.page import write_report
from dynolab.report.study.paths_svg import paths_svg
from dynolab.report.style import DARK
from dynolab.report.text import excerpt, number, plotly_text, token_text
from dynolab.results.study import PairChange, TrainingSummary
from tests.report.parsed import Parsed
from tests.report.synthetic import study, token_map, training


def test_figures_hold_valid_json_and_known_colours(folder: Path) -> None:
    """A colour without a dark partner would stay light on a dark page."""
    assert len(set(DARK.values())) == len(DARK)
    for file in (folder / "figures").glob("*.json"):
        json.loads(file.read_text())
        assert set(re.findall(r"#[0-9a-f]{6}", file.read_text())) <= set(DARK), file.name
    found = Parsed((folder / "report.html").read_text())
    blocks = [text for a, text in found.scripts if a.get("type") == "application/json"]
    assert len(blocks) == 11
    assert all(json.loads(block) for block in blocks)


def test_summary_is_flat_finite_json(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    assert all(isinstance(value, float) for value in summary["metrics"].values())
    assert summary["metrics"]["claims/appears"] == 12
    assert summary["metrics"]["dpo/gap/change"] > 4
    assert next(iter(summary["metrics"])).startswith("dpo/")
    assert 0 <= summary["metrics"]["force/dpo/unexplained"] < 0.1
    assert {verdict["outcome"] for verdict in summary["verdicts"]} == {"appears"}


def with_trainings(*trainings: Training) -> ReportInputs:
    return replace(study(), trainings=trainings)


def test_messages_follow_the_data(folder: Path, tmp_path: Path) -> None:
    sft, dpo = study().trainings
    swapped = with_trainings(replace(sft, probes=dpo.probes), replace(dpo, probes=sft.probes))
    write_report(swapped, tmp_path)
    assert "SFT narrows the gap" in (folder / "report.html").read_text()
    assert "SFT widens the gap" in (tmp_path / "report.html").read_text()


def test_trainings_come_in_the_studys_order_whatever_their_objective(tmp_path: Path) -> None:
    inputs = with_trainings(
        training("rl", "grpo", forces=(), token_map=None), training("sft", "sft")
    )
    summary = write_report(inputs, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert 0 < page.index("GRPO widens the gap") < page.index("SFT narrows the gap")
    assert 0 < page.index("GRPO: chosen") < page.index("SFT: chosen")
    assert summary["metrics"]["grpo/gap/change"] > 4
    stages = {verdict["id"].split("/")[0] for verdict in summary["verdicts"]}
    assert stages == {"grpo", "sft"}


def test_answers_stand_side_by_side(folder: Path) -> None:
    words = "".join(Parsed((folder / "report.html").read_text()).words)
    assert (
        "4 prompts have 4 different chosen answers; base gives 1, SFT 4 and DPO 1. "
        "DPO repeats SFT word for word in 1 of 4."
    ) in words
    assert "what is number 2 ?surely it is 2 .mm mm …it is 2it is 0" in words


def test_answers_taken_from_training_questions_are_counted_and_shown(folder: Path) -> None:
    words = "".join(Parsed((folder / "report.html").read_text()).words)
    assert "answers another training question: base 0 of 2, SFT 0 of 2 and DPO 2 of 2." in words
    assert "DPO2100.0 [34.2, 100.0]50.0 [9.5, 90.5]" in words
    assert "DPOwhat is number 2 ?it is 0what is it ?surely it is 2 ." in words


def test_many_heldout_answers_are_counted_but_not_all_shown(tmp_path: Path) -> None:
    few = study().answers
    more = [
        one.model_copy(update={"pair_id": f"more{n}", "prompt": f"and what is {n} ?"})
        for one in few
        if one.pair_id == "q3"
        for n in range(30)
    ]
    write_report(replace(study(), answers=(*few, *more)), tmp_path)
    words = "".join(Parsed((tmp_path / "report.html").read_text()).words)
    assert "DPO 32 of 32." in words
    assert "34 prompts have" in words
    assert words.count("and what is ") == 1  # among the examples


def test_events_are_told_in_their_order(folder: Path) -> None:
    words = "".join(Parsed((folder / "report.html").read_text()).words)
    assert re.search(r"DPO: chosen falls below its start \(step 10\), rejected falls", words)
    assert re.search(r"SFT\d+rejected y⁻ peaks\+\S+ \[\S+ \S+\] up to it, −\S+ \[", words)
    assert re.search(r"DPO\d+gap y\* − y⁺ exceeds its start\+\S+ \[\S+ \S+\] there, \+", words)
    events = json.loads((folder / "summary.json").read_text())["events"]
    steps = [event["step"] for event in events["dpo"]]
    assert steps == sorted(steps)
    assert {event["what"] for event in events["sft"]} == {"peaks", "falls below its start"}


def test_the_worst_pairs_stand_in_a_table_and_all_in_a_file(folder: Path) -> None:
    words = "".join(Parsed((folder / "report.html").read_text()).words)
    rows = list(read_rows(folder / "pairs.jsonl", PairChange))
    assert len(rows) == 26
    assert [row.chosen for row in rows] == sorted(row.chosen for row in rows)
    worst, tenth, next_one = rows[0], rows[9], rows[10]
    assert "DPO lowered the chosen answer of 26 of 26 watched training pairs" in words
    assert f"that of “{worst.pair_id}” changed by {number(worst.chosen, sign=True)} nats" in words
    for row in (worst, tenth):
        assert f"{row.pair_id}{row.prompt}{number(row.chosen, sign=True)}" in words
    assert f"{next_one.pair_id}{next_one.prompt}" not in words


def test_the_worst_pairs_map_is_a_command_for_a_shell(tmp_path: Path) -> None:
    inputs = study()
    dpo, name = inputs.trainings[-1], "it's; $(boom) ü\n"
    probes = tuple(
        row.model_copy(update={"pair_id": name}) for row in dpo.probes if row.pair_id == "q000"
    )
    write_report(replace(inputs, trainings=(replace(dpo, probes=probes),)), tmp_path)
    words = "".join(Parsed((tmp_path / "report.html").read_text()).words)
    command = re.search(r"its id in place\):(dynolab forces.*?)Changes from start", words)
    assert command is not None
    *start, _, analysis = shlex.split(command[1])
    assert start == ["dynolab", "forces", "--set", "name=pair"]
    assert yaml.safe_load(analysis.removeprefix("analysis.pair_ids=")) == [name]


def test_a_training_without_pairs_has_no_table_of_them(tmp_path: Path) -> None:
    write_report(with_trainings(training("sft", "sft")), tmp_path)
    assert not (tmp_path / "pairs.jsonl").exists()
    assert "fared worst" not in (tmp_path / "report.html").read_text()


def test_kinds_say_how_they_were_made(folder: Path) -> None:
    words = "".join(Parsed((folder / "report.html").read_text()).words)
    assert "The examples answer “what is it ?”." in words
    assert "chosen y⁺the datait is 0" in words


def test_contrasts_stand_beside_the_studys_own_training(folder: Path) -> None:
    words = "".join(Parsed((folder / "report.html").read_text()).words)
    assert re.search(
        r"y\* changes by \+\S+ nats in this study's DPO and \+\S+ nats in “resampled”", words
    )


def test_a_study_without_measurements_still_has_a_page(tmp_path: Path) -> None:
    empty = with_trainings(Training("sft", "sft"), Training("preference", "dpo"))
    summary = write_report(replace(empty, contrasts=(), answers=()), tmp_path)
    assert {verdict["outcome"] for verdict in summary["verdicts"]} == {"not measured"}
    assert "not measured" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "paths.svg").exists()
    assert write_report(ReportInputs(StudyFacts(name="nothing")), tmp_path)["verdicts"] == []


@pytest.mark.parametrize("missing", ["probes", "metrics", "forces", "replay", "token_map"])
def test_a_missing_part_leaves_the_others(missing: str, tmp_path: Path) -> None:
    empty = None if missing == "token_map" else ()
    sft, dpo = study().trainings
    summary = write_report(with_trainings(sft, replace(dpo, **{missing: empty})), tmp_path)
    assert summary["metrics"]
    assert (tmp_path / "report.html").exists()


def test_a_map_without_a_rejected_side(tmp_path: Path) -> None:
    full = token_map()
    sft = full.model_copy(
        update={"stage": "sft", "rejected_tokens": [], "force": [r[:8] for r in full.force]}
    )
    write_report(with_trainings(training("sft", "sft", token_map=sft)), tmp_path)
    assert "SFT step 40" in (tmp_path / "report.html").read_text()


def test_reads_what_the_stages_wrote(tmp_path: Path) -> None:
    for one in study().trainings:
        place = tmp_path / one.name
        place.mkdir()
        summary = TrainingSummary(steps=100, objective=one.stage, rows={})
        (place / "summary.json").write_text(summary.model_dump_json())
        (place / "probes.jsonl").write_text("".join(row.line() for row in one.probes))
        for name, rows in (("metrics", one.metrics), ("forces", one.forces)):
            lines = [row.model_dump_json() + "\n" for row in rows]
            (place / f"{name}.jsonl").write_text("".join(lines))
        replay = [row.model_dump() for row in one.replay]
        (place / "replay.json").write_text(json.dumps(replay))
        if one.token_map is not None:
            (place / "token_map.json").write_text(one.token_map.model_dump_json())
        assert read_training(one.name, place, place) == one
        assert read_training(one.name, place).probes == one.probes


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    summary = {"steps": 1, "objective": "dpo", "rows": {}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "probes.jsonl").write_text('\n{"step": "many"}\n')
    with pytest.raises(ConfigError, match=r"probes\.jsonl line 2.*pair_id"):
        read_training("x", tmp_path)
    (tmp_path / "probes.jsonl").unlink()
    (tmp_path / "token_map.json").write_text(
        token_map().model_copy(update={"force": [[1.0]]}).model_dump_json()
    )
    with pytest.raises(ConfigError, match=r"token_map\.force"):
        read_training("x", tmp_path, tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"objective": "../<b>"}))
    with pytest.raises(ConfigError, match=r"summary\.json.*objective"):
        read_training("x", tmp_path)


def test_svg_is_well_formed_and_still() -> None:
    found = {(one.stage, "train"): learning_paths(one.probes) for one in study().trainings}
    drawing = paths_svg(found)  # type: ignore[arg-type]
    assert drawing is not None
    root = ElementTree.fromstring(drawing)
    tags = [element.tag.split("}")[1] for element in root.iter()]
    assert tags.count("polyline") == 6
    assert "script" not in tags
    assert not re.search(r"(href|url\()", drawing)
    assert paths_svg({}) is None


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


def test_pairs_left_out_for_the_context_are_told(tmp_path: Path) -> None:
    sft, dpo = study().trainings
    counts = {"data/rows_kept": 340, "data/rows_dropped": 60, "data/rows_truncated": 0}
    write_report(with_trainings(sft, replace(dpo, rows=counts)), tmp_path)
    words = "".join(Parsed((tmp_path / "report.html").read_text()).words)
    assert "DPO left out 60 of 400 pairs as longer than the model’s context." in words
    assert "SFT left out" not in words


def test_long_texts_are_shortened_in_tables_at_the_end_that_says_less() -> None:
    assert excerpt("a few\nwords") == "a few words"
    assert excerpt("x" * 20, 5) == "xxxxx […]"
    assert excerpt("older turns, last turn", 9, end=True) == "[…] last turn"
