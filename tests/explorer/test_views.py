"""The views as components, also where recorded steps are lost, do not fit, or never were."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("dash")

from dynolab.explorer import step as step_module
from dynolab.explorer.page import moved, pairs, parts, search, what_if
from dynolab.explorer.page.app import state_of, unknown_names
from dynolab.explorer.page.lit import lit_lines
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.report.ledger.fallen import half_of_a_fall
from dynolab.report.style import number
from dynolab.results import ledger_reader
from dynolab.results.ledger_reader import Pulls
from dynolab.training.step_record import RecordCache
from tests.explorer.small_study import STEPS, alone, ledger_of, small_study, text_of, view


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Its recorded steps are in a cache."""
    study = small_study(tmp_path_factory.mktemp("study"))
    for training in study.trainings.values():
        for step in STEPS:
            training.records.take(training.folder / "forces" / f"step-{step:08d}")
    return study


def test_a_typed_answer_has_its_pushers_and_maps(study: Study) -> None:
    state = State(prompt="w1 w2", response=" w3 <b>w4</b> w5")
    text = view(study, state)
    assert "An answer of your own" in text and "at recorded steps 0, 3" in text
    assert "Who pulled it down" in text or "Who held it up" in text
    training = study.training("preference")
    pair = training.record(STEPS[0]).examples[0].id
    chosen = {"pair": pair, "place": 1, "step": STEPS[0]}
    text = view(study, state.model_copy(update=chosen))
    assert f"{pair} on typed, token by token, at step {STEPS[0]}" in text
    assert "Who pulled “" in text or "Who held “" in text


def test_a_typed_answer_moves_by_what_its_pairs_did(study: Study) -> None:
    """A watched answer that is typed again has the lines that it has as a watched one."""
    training = study.training("preference")
    watched = training.answers["chosen"][0].row
    typed = State(prompt=watched.prompt, response=watched.response)
    message = "nats at recorded steps 0, 3:"
    texts = [view(study, typed), view(study, State(answer=watched.pair_id))]
    sums = [text[text.index(message) - 7 : text.index("is left over")] for text in texts]
    assert sums[0] == sums[1]


def test_two_trainings_are_side_by_side(study: Study) -> None:
    text = view(study, State(beside="sft"))
    assert "Who pulled it down, in one or the other" in text
    assert text.count("log π went from") == 3  # above, and under each training
    assert text.count("at recorded steps 0, 3") == 4  # in sentences, and in heads of the table
    assert "in one or the other" not in view(study, State(beside="preference"))


def test_where_one_training_has_a_ledger_both_are_looked_at_in_recorded_steps(
    study: Study, tmp_path: Path
) -> None:
    trained = study.training("preference")
    with_ledger = replace(trained, ledger=ledger_of(study, tmp_path))
    both = replace(study, trainings={**study.trainings, "preference": with_ledger})
    assert "over the whole training" in view(both, State())
    text = view(both, State(beside="sft"))
    assert "over the whole training" not in text and text.count("at recorded steps 0, 3") == 4


def test_two_steps_of_a_training_are_side_by_side(study: Study) -> None:
    training = study.training("preference")
    answer = training.answers["chosen"][0]
    text = view(study, State(step=0, step_beside=3))
    assert "step 0 " in text and "step 3 " in text
    assert "at recorded step 0:" in text and "at recorded step 3:" in text
    first, last = (training.log_probs(answer.row, step) for step in STEPS)
    for start, end in (first, last):
        assert f"log π went from {number(start, 6)} to {number(end, 6)}" in text
    measured = training.lines_to(answer.row, STEPS, State().asked).measured[0]
    assert sum(end - start for start, end in (first, last)) == pytest.approx(measured, abs=1e-4)
    assert first[0] == pytest.approx(answer.start, abs=1e-3)
    assert last[1] == pytest.approx(answer.end, abs=1e-3)  # the last step is the end
    text = view(study, State(step=0))
    assert "beside step none 3" in text and "in one or the other" not in text
    assert "beside step" not in view(study, State())


def test_an_account_is_shown_step_by_step(study: Study) -> None:
    training = study.training("preference")
    lines = training.lines_to(training.answers["chosen"][0].row, STEPS, State().asked)
    pair = lines.pairs[0]
    figure = moved._plot(lines)
    chosen, rejected, both = figure.data
    for place, step in enumerate(STEPS):
        own = lines.step == step
        assert both.y[place] == pytest.approx(lines.nats[own].sum())
        assert chosen.y[place] == pytest.approx(lines.nats[own & (lines.side == "chosen")].sum())
    assert np.add(chosen.y, rejected.y) == pytest.approx(both.y)
    assert "Step by step, by all pairs" in view(study, State())
    assert lines.of_pair(pair).pairs == [pair]


def test_pushers_of_mixed_data_are_summed_by_source(study: Study) -> None:
    training = study.training("preference")
    lines = training.lines_to(training.answers["chosen"][0].row, STEPS, State().asked)
    names = {pair: f"{'ab'[place % 2]}/{pair}" for place, pair in enumerate(lines.pairs)}
    mixed = replace(lines, pair=np.array([names[pair] for pair in lines.pair]))
    heading, sums, *more = moved.pusher_tables(study, mixed, State())
    rows = [[cell.children for cell in row.children] for row in sums.children.children[1].children]
    own = parts.nats(lines.nats[np.char.startswith(mixed.pair, "a/")].sum())
    assert heading.children == "By source" and ["a", own] in [row[:2] for row in rows]
    assert len(moved.pusher_tables(study, lines, State())) == len(more)
    assert half_of_a_fall(Pulls.down(lines.pushers(0))) in text_of(more)


def test_a_long_answer_is_drawn_to_a_bound_and_says_what_is_left() -> None:
    texts = ["שלום", "🦊", "<b>"] * 7_000
    drawn = parts.tokens(texts, [0.0] * len(texts), ["?"] * len(texts), None)
    assert len(drawn.children) == parts.TOKENS + 1
    assert "20,000 more tokens are not shown" in drawn.children[-1].children
    assert drawn.dir == "auto"
    short = parts.tokens(texts[:3], [1.0, -1.0, 0.0], ["?"] * 3, 1)
    assert [link.children for link in short.children] == texts[:3]


def test_the_strongest_row_of_a_map_is_lit_as_the_page_arrives(study: Study) -> None:
    training = study.training("preference")
    pair = study.pairs[training.record(STEPS[0]).examples[0].id]
    row = training.answers["chosen"][0].row
    token_map = training.token_map(row, pair, STEPS[0], State().asked)
    rejected = np.array(token_map.force)[:, len(token_map.chosen_tokens) :]
    strongest = int(np.abs(rejected.sum(1)).argmax())
    drawn = lit_lines(token_map).to_plotly_json()["props"]
    assert np.array(json.loads(drawn["data-nats"])) == pytest.approx(rejected, rel=1e-2)
    assert drawn["data-strongest"] == str(strongest)
    finding = text_of(drawn["children"][0])
    assert parts.nats(float(rejected[strongest].sum())) in finding
    assert f"y⁻ of {pair.id}" in text_of(drawn["children"])
    none = token_map.model_copy(
        update={
            "rejected_tokens": [],
            "force": [of[: len(token_map.chosen_tokens)] for of in token_map.force],
        }
    )
    assert f"y⁺ of {pair.id}" in text_of(lit_lines(none))  # as in training without rejected ones


def test_any_pair_is_found_by_its_name_or_text() -> None:
    texts = [(f"pair-{number}", f"prompt 👩‍🔬 {number % 7}") for number in range(500)]
    assert len(search.found(texts, "", "")) == search.FOUND
    assert [entry["value"] for entry in search.found(texts, "PAIR-49", "pair-3")] == [
        "pair-49",
        *(f"pair-{number}" for number in range(490, 500)),
        "pair-3",
    ]
    assert len(search.found(texts, "👩‍🔬 6", "")) == search.FOUND
    assert search.found(texts, "nowhere", "") == []


@pytest.mark.parametrize("every", [range(22), range(1), (11, 21), (11,), (0, 1, 2, 900)])
def test_the_slider_stands_on_steps_or_left_of_all(every: Sequence[int]) -> None:
    slider = parts.steps(every, None).children[1]
    at = range(slider.min, slider.max + 1) if slider.step else sorted(slider.marks)
    assert [place for place in at if place >= 0] == list(every)
    assert [place for place in at if place < 0] == [slider.value]
    assert slider.marks[slider.value] == "all"


LOST = "no longer in this machine's cache"
NONE = "preference.record_steps = []: records no step"
ROOM = "copies of the"


@pytest.fixture(params=[LOST, NONE, ROOM])
def incomplete(
    study: Study, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Study, str]:
    """The study with a ledger, of which no step can be computed, and the words that say so."""
    monkeypatch.setattr(ledger_reader, "PASSES", 1)
    changes = {"ledger": ledger_of(study, tmp_path)}
    if request.param == LOST:
        changes["records"] = RecordCache(tmp_path / "empty")
    elif request.param == ROOM:
        monkeypatch.setattr(step_module, "free_bytes", lambda device: 10)
    else:
        folder = study.training("preference").folder
        shutil.copytree(folder, tmp_path / "none", ignore=shutil.ignore_patterns("forces"))
        changes["folder"] = tmp_path / "none"
    return alone(study, **changes), request.param


def test_an_answer_has_its_stored_account(incomplete: tuple[Study, str]) -> None:
    study, words = incomplete
    text = view(study, State(pair=next(iter(study.pairs)), place=0))
    assert words in text
    assert "−2.50 nats over the whole training: +2.50 through chosen answers, −5.00" in text
    assert "Who pulled it down" in text and "Who held it up" in text
    assert "token by token" not in text


def test_what_has_no_account_says_why(incomplete: tuple[Study, str]) -> None:
    study, words = incomplete
    for state in (State(metric="gradient"), State(prompt="w1", response=" w2")):
        text = view(study, state)
        assert words in text and "Who pulled it down" not in text


def test_pairs_and_what_if_show_the_ledgers_sums(incomplete: tuple[Study, str]) -> None:
    study, words = incomplete
    first = next(iter(study.pairs))
    text = view(study, State(view="pairs", pair=first))
    assert words in text and "−2.00 " in text  # 1 − 3: of the list, by the mean
    answer = study.training("preference").answers["chosen"][0].row.pair_id
    assert "training, mean of 2 −2.00 +1.00 −3.00" in text
    assert f"{answer}, chosen y⁺ −3.50 +0.500 −4.00" in text
    assert "Whom it harms" not in text
    state = State(view="what-if", without=(first,), answer=answer)
    text = view(study, state)
    assert words in text and "Over the whole training" in text and "preference_filter" in text
    assert "would fall" not in text
    # −2.5, less −3.5 of the pair, and half of the others' 1 in its place.
    assert f"{first}: {answer} +1.50 instead of −2.50 nats" in text
    assert "Another order of the rows changes it, too: how much is not known." in text
    assert f"{answer}, chosen y⁺ −2.50 +1.50 +4.00" in text


def test_a_forecast_within_what_another_order_changes_tells_no_direction(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_reader, "PASSES", 1)
    ledger = ledger_of(study, tmp_path)
    first, second, third = ledger.examples
    example = np.array([second, first, second, third])  # the second has two places of four
    changed = alone(study, ledger=replace(ledger, example=example))
    texts = {pair: view(changed, State(view="what-if", without=(pair,))) for pair in (first, third)}
    assert "Another order of the rows changes it by about 2.15 nats, too." in texts[first]
    assert "2.15 nats: too much to know which way a training without them" in texts[third]


def test_where_a_training_alone_tells_no_forecast_is_shown(study: Study, tmp_path: Path) -> None:
    ledger = ledger_of(study, tmp_path)
    state = State(view="what-if", without=(ledger.examples[0],))
    text = view(alone(study, ledger=ledger), state)
    assert "is not known, only a training tells. Rows were trained on 1.0 times" in text
    long = tuple(replace(account, length=9.0) for account in ledger.accounts)
    text = view(alone(study, ledger=replace(ledger, accounts=long)), state)
    assert "Its steps undid each other, 9 nats up and down for a change of 2.5." in text
    assert "chosen y⁺ −2.50 not known not known" in text and "nan" not in text


def test_the_list_of_pairs_is_the_ledgers_before_and_after_steps_are_computed(
    study: Study, tmp_path: Path
) -> None:
    with_ledger = alone(study, ledger=ledger_of(study, tmp_path))
    training = with_ledger.training("preference")
    state = State(view="pairs", pair=training.record(STEPS[0]).examples[0].id)
    before = text_of(pairs.listed(with_ledger, state))
    assert "Whom it harms" in view(with_ledger, state)
    assert text_of(pairs.listed(with_ledger, state)) == before
    by_gradients = text_of(
        pairs.listed(with_ledger, state.model_copy(update={"metric": "gradient"}))
    )
    assert by_gradients != before
    shutil.rmtree(training.cache)


def test_what_no_probability_has_room_for_is_no_number(study: Study) -> None:
    training = study.training("preference")
    state = State(view="what-if", objective="ipo", beta=1e-4, metric="gradient")
    text = view(study, state)
    forecast = what_if._at_recorded_steps(training, state)
    assert forecast is not None and forecast.beyond
    ends = [answer.end for answer in training.answers["chosen"]]
    change = forecast.would - forecast.lines.measured
    assert not (np.isfinite(change) & (change + ends > 0)).any()
    assert f"{forecast.beyond} answers go up beyond first order" in text and "inf" not in text


def test_names_that_the_study_has_not_are_said(study: Study) -> None:
    pair = next(iter(study.pairs))
    state = State(answer="x", pair=pair, step=99, beside="y", without=(pair, "z"))
    names = ["training y", "watched answer x", "pair z", "step 99"]
    assert unknown_names(study, state) == [f"no {name}" for name in names]
    assert unknown_names(study, State(pair=pair, step=STEPS[0], beside="sft")) == []
    assert state_of(study, state.link()).without == (pair,)


def test_a_pair_s_sums_do_not_wait_for_recorded_steps(study: Study, tmp_path: Path) -> None:
    own = alone(study, ledger=ledger_of(study, tmp_path))
    state = State(view="pairs", pair=next(iter(study.pairs)))
    text = text_of(pairs.shown(own, state, computed=False))
    assert "Over the whole training" in text and "Whom it harms" not in text


def test_steps_that_are_left_are_computed(study: Study, tmp_path: Path) -> None:
    own = study.training("preference")
    shutil.copytree(own.records.folder, tmp_path / "cache")
    records = RecordCache(tmp_path / "cache")
    shutil.rmtree(records._place(own.folder / "forces" / f"step-{STEPS[0]:08d}"))
    text = view(alone(study, records=records), State())
    assert f"step = [{STEPS[0]}]: its tensors are" in text
    assert f"at recorded step {STEPS[1]}" in text and "Colour: push by" in text


def test_what_was_computed_before_a_loss_stays(study: Study, tmp_path: Path) -> None:
    first = study.training("preference").record(STEPS[0]).examples[0].id
    states = [State(view="pairs", pair=first), State(view="what-if", without=(first,))]
    before = alone(study)
    texts = [view(before, state) for state in states]
    own = before.training("preference")
    lost = replace(own, records=RecordCache(tmp_path), _steps={})
    after = replace(before, trainings={"preference": lost})
    for text, state in zip(texts, states, strict=True):
        assert "recorded step" in text
        again = view(after, state)
        assert LOST in again and "recorded step" in again
    shutil.rmtree(own.cache)
