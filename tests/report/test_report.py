from __future__ import annotations

import html
import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dynolab.data.rows import read_rows, write_rows
from dynolab.data.unknown import UnknownTokens
from dynolab.errors import ConfigError
from dynolab.probes.paths import learning_paths
from dynolab.report.forces.token_map import token_map_message
from dynolab.report.inputs.study import (
    ReportInputs,
    StudyFacts,
    Training,
    read_training,
)
from dynolab.report.study.page import write_report
from dynolab.report.study.paths_svg import paths_svg
from dynolab.report.style import DARK
from dynolab.report.text import excerpt, number, plotly_text, token_text, with_interval
from dynolab.results.study import PairChange, TrainingSummary
from dynolab.statistics import Interval
from tests.report.parsed import check_figures, words_of
from tests.report.synthetic import study, token_map, training, world_answers


def written(folder: Path, inputs: ReportInputs) -> str:
    """The words of a report."""
    write_report(inputs, folder)
    return words_of(folder / "report.html")


def with_trainings(*trainings: Training) -> ReportInputs:
    return replace(study(), trainings=trainings)


def test_figures_hold_valid_json_and_known_colours(folder: Path) -> None:
    """A colour without a dark partner would stay light on a dark page."""
    assert len(set(DARK.values())) == len(DARK)
    assert check_figures(folder, "report.html") == 13


def test_summary_is_flat_finite_json(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    metrics = summary["metrics"]
    assert all(isinstance(value, float) for value in metrics.values())
    assert metrics["claims/appears"] == 12
    assert metrics["dpo/gap/change"] > 4
    assert next(iter(metrics)).startswith("dpo/")
    assert 0 <= metrics["force/dpo/unexplained"] < 0.1
    assert {verdict["outcome"] for verdict in summary["verdicts"]} == {"appears"}


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(
            re.escape(
                "4 prompts have 4 different chosen answers; base gives 1, SFT 4 and DPO 1. "
                "DPO repeats SFT word for word in 1 of 4."
            ),
            id="how many answers differ",
        ),
        pytest.param(
            re.escape("what is number 2 ?surely it is 2 .mm mm …it is 2it is 0"),
            id="answers side by side",
        ),
        pytest.param(
            "answers another training question: base 0 of 2, SFT 0 of 2 and DPO 2 of 2[.]",
            id="how many answers are another question's",
        ),
        pytest.param(
            re.escape("DPO2100.0 [34.2, 100.0]50.0 [9.5, 90.5]"), id="their shares in a table"
        ),
        pytest.param(
            re.escape("DPOwhat is number 2 ?it is 0what is it ?surely it is 2 ."),
            id="an example of them",
        ),
        pytest.param(
            r"DPO: chosen falls below its start \(step 10\), rejected falls", id="order of events"
        ),
        pytest.param(r"SFT\d+rejected y⁻ peaks\+\S+ \[\S+ \S+\] up to it, −\S+ \[", id="a peak"),
        pytest.param(
            r"DPO\d+gap y\* − y⁺ exceeds its start\+\S+ \[\S+ \S+\] there, \+", id="the gap grows"
        ),
        pytest.param(re.escape("The examples answer “what is it ?”."), id="whose the examples are"),
        pytest.param("chosen y⁺the datait is 0", id="how a kind was made"),
        pytest.param(
            r"y\* changes by \+\S+ nats in this study's DPO and \+\S+ nats in “resampled”",
            id="contrasts beside the study's own training",
        ),
        pytest.param("SFT narrows the gap", id="a message that follows the data"),
        pytest.param(
            re.escape(
                "Seen from their start, first order leaves 2% of what the 86 steps of DPO did "
                "together unexplained; at 1.6 times the learning rate it would leave 5%."
            ),
            id="how far first order carries",
        ),
        pytest.param(
            re.escape("DPOsteps 10–402%1.61.9softmax +108%, layers.0 −8%"),
            id="what bends it",
        ),
        pytest.param(
            re.escape(
                "A step of DPO moves features by up to 3% of their size, most at layer 2; the "
                "resultant of its examples’ forces goes from 0.9 at the first layer to 0.5 at the "
                "last"
            ),
            id="where features move",
        ),
    ],
)
def test_the_page_says(words: str, said: str) -> None:
    assert re.search(said, words)


def test_messages_follow_the_data(tmp_path: Path) -> None:
    sft, dpo = study().trainings
    swapped = with_trainings(replace(sft, probes=dpo.probes), replace(dpo, probes=sft.probes))
    assert "SFT widens the gap" in written(tmp_path, swapped)


def test_trainings_come_in_the_studys_order_whatever_their_objective(tmp_path: Path) -> None:
    inputs = with_trainings(
        training("rl", "grpo", forces=(), token_map=None), training("sft", "sft")
    )
    summary = write_report(inputs, tmp_path)
    page = words_of(tmp_path / "report.html")
    assert 0 < page.index("GRPO widens the gap") < page.index("SFT narrows the gap")
    assert 0 < page.index("GRPO: chosen") < page.index("SFT: chosen")
    assert summary["metrics"]["grpo/gap/change"] > 4
    stages = {verdict["id"].split("/")[0] for verdict in summary["verdicts"]}
    assert stages == {"grpo", "sft"}


def test_many_heldout_answers_are_counted_but_not_all_shown(tmp_path: Path) -> None:
    few = study().answers
    more = [
        answer.model_copy(update={"pair_id": f"more{n}", "prompt": f"and what is {n} ?"})
        for answer in few
        if answer.pair_id == "q3"
        for n in range(30)
    ]
    words = written(tmp_path, replace(study(), answers=(*few, *more)))
    assert "DPO 32 of 32." in words
    assert "34 prompts have" in words
    assert words.count("and what is ") == 1 + 2  # among the examples and the first answers


def test_answers_are_told_right_or_wrong_by_kind(tmp_path: Path) -> None:
    words = written(tmp_path, replace(study(), answers=world_answers()))
    for said in (
        "Right on 20 questions tuned on: 0% base, 100% SFT and 75% DPO.",
        "On held-out questions DPO is right in 80% of the answers about facts that its base corpus "
        "states and 70% of the answers about others.",
        "base, held outSFT, held outDPO, held out",
        "0 [0, 16]100 [84, 100]75 [53, 89]… of facts that the corpus states",
        "0 [0, 28]100 [72, 100]70 [40, 89]right, number",
        "another entity’s value, number––5––5nobody’s value, number5––5––",
        "borrowed phrases, %050100050100",
        "it is .✗ another entity’s value",
    ):
        assert said in words
    check_figures(tmp_path, "report.html")
    figure = json.loads((tmp_path / "figures" / "answer-kinds.json").read_text())
    bars = {bar["name"]: bar["x"] for bar in figure["data"] if bar["xaxis"] == "x"}
    assert bars["right"] == [0, 75, 75] and bars["right, rejected style"] == [0, 25, 0]
    assert bars["another entity’s value"] == [0, 0, 25] and bars["broken"] == [50, 0, 0]
    totals = [sum(of_model) for of_model in zip(*bars.values(), strict=True)]
    assert totals == [100, 100, 100]


def test_events_of_a_training_come_by_their_steps(folder: Path) -> None:
    events = json.loads((folder / "summary.json").read_text())["events"]
    steps = [event["step"] for event in events["dpo"]]
    assert steps == sorted(steps)
    assert {event["what"] for event in events["sft"]} == {"peaks", "falls below its start"}


def test_the_worst_pairs_stand_in_a_table_and_all_in_a_file(folder: Path, words: str) -> None:
    rows = list(read_rows(folder / "pairs.jsonl", PairChange))
    assert len(rows) == 26
    assert [row.chosen for row in rows] == sorted(row.chosen for row in rows)
    worst, tenth, eleventh = rows[0], rows[9], rows[10]
    assert "DPO lowered the chosen answer of 26 of 26 watched training pairs" in words
    assert f"that of “{worst.pair_id}” changed by {number(worst.chosen, sign=True)} nats" in words
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
    assert "fared worst" not in written(tmp_path, with_trainings(training("sft", "sft")))
    assert not (tmp_path / "pairs.jsonl").exists()


def test_a_study_without_measurements_still_has_a_page(tmp_path: Path) -> None:
    empty = with_trainings(Training("sft", "sft"), Training("preference", "dpo"))
    summary = write_report(replace(empty, contrasts=(), answers=()), tmp_path)
    assert {verdict["outcome"] for verdict in summary["verdicts"]} == {"not measured"}
    assert "not measured" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "paths.svg").exists()
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


def test_a_map_without_a_rejected_side(tmp_path: Path) -> None:
    full = token_map()
    sft = full.model_copy(
        update={"stage": "sft", "rejected_tokens": [], "force": [r[:8] for r in full.force]}
    )
    words = written(tmp_path, with_trainings(training("sft", "sft", token_map=sft)))
    assert "SFT step 40" in words


def test_a_map_without_a_force_or_a_rejected_side_names_the_chosen_tokens() -> None:
    own = token_map().model_copy(update={"rejected_tokens": [], "force": [[0.0] * 8] * 8})
    assert f"of its y⁺ that do most: “{own.chosen_tokens[0]}”" in token_map_message(own)


def test_a_map_names_the_tokens_that_do_most_of_what_the_pair_did() -> None:
    """Of a pull the hardest ones, summed over the observed answer's tokens."""
    own = token_map()
    force = [[0.3, -0.1, *[0.0] * 14], [-0.2, -0.4, *[0.0] * 14], *[[0.0] * 16] * 6]
    message = token_map_message(own.model_copy(update={"force": force}))
    assert "pushes “q003”'s chosen answer by −0.400 nats" in message
    _, second, *_ = own.chosen_tokens
    assert message.endswith(f"The tokens of its y⁺ that do most: “{second}” −0.50.")


@pytest.mark.parametrize(
    ("character", "remedy"),
    [
        ("’", """add --set 'data.replace={"’": "\\u0027"}' to the study’s command"""),
        ("=", """name these: --set 'data.replace={"=": "TEXT"}'"""),
    ],
)
def test_what_the_tokenizer_does_not_know_can_be_replaced(
    character: str, remedy: str, tmp_path: Path
) -> None:
    *others, dpo = study().trainings
    unknown = UnknownTokens(30, 100, 10, 20, Counter({character: 30}))
    told = with_trainings(*others, replace(dpo, rows=unknown.as_metrics()))
    assert remedy in written(tmp_path, told)


def test_tokens_that_others_read_otherwise_are_told(tmp_path: Path) -> None:
    facts = study().facts.model_copy(update={"read_otherwise": 5})
    assert "splits 5 of 6 sample texts otherwise" in written(
        tmp_path, replace(study(), facts=facts)
    )


def test_pairs_left_out_for_the_context_are_told(tmp_path: Path) -> None:
    sft, dpo = study().trainings
    counts = {"data/rows_kept": 340, "data/rows_dropped": 60, "data/rows_truncated": 0}
    words = written(tmp_path, with_trainings(sft, replace(dpo, rows=counts)))
    assert "DPO left out 60 of 400 pairs as longer than the model’s context." in words
    assert "SFT left out" not in words


def test_steps_outside_the_radius_of_first_order_are_named_first(tmp_path: Path) -> None:
    sft, dpo = study().trainings
    far = tuple(
        own.model_copy(update={"unexplained": 0.2 if own.step == 40 else own.unexplained})
        for own in dpo.validity
    )
    words = written(tmp_path, with_trainings(sft, replace(dpo, validity=far)))
    assert "Step 40 of DPO moved too far for first order" in words


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


def test_svg_is_well_formed_and_still() -> None:
    paths = {(own.stage, "train"): learning_paths(own.probes) for own in study().trainings}
    drawing = paths_svg(paths)  # type: ignore[arg-type]
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


def test_one_value_has_no_interval() -> None:
    assert with_interval(Interval(0.98, float("nan"), float("nan"), 1)) == "+0.98"
    assert with_interval(Interval(0.98, 0.9, 1.06, 4)) == "+0.98 [+0.90, +1.06]"


def test_long_texts_are_shortened_in_tables_at_the_end_that_says_less() -> None:
    assert excerpt("a few\nwords") == "a few words"
    assert excerpt("x" * 20, 5) == "xxxxx […]"
    assert excerpt("older turns, last turn", 9, end=True) == "[…] last turn"
