"""The report's part on squeezing: what it says follows the rows, whatever they hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dynolab.evaluation.repeats import repetition
from dynolab.report.inputs.study import Squeezing
from dynolab.report.study.ladder import ladder_figure, ladder_section
from dynolab.report.study.page import write_report
from dynolab.report.study.squeezing import forecast_section, repeater_section, squeezing_figure
from dynolab.results.squeezing import Forecast, Generation, LadderRung, RisenMass
from dynolab.results.study import AlarmRing
from tests.report.parsed import Parsed
from tests.report.synthetic import study

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


def foretold(step: int, auc: float, side: str = "rejected") -> Forecast:
    return Forecast.model_validate(
        {
            "training": "preference",
            "step": step,
            "side": side,
            "positions": 10,
            "tokens": 490,
            "foretold": 40,
            "rose": 60,
            "right": 430,
            "auc": auc,
            "auc_top": 0.7,
            "auc_last_layer": 0.8,
            "explained": 0.4,
            "cosine": 0.8,
            "agree": 0.9,
        }
    )


def generation(model: str, tokens: list[int]) -> Generation:
    return Generation(
        model=model, pair_id="p", split="heldout", finished=True, **dict(repetition(tokens))
    )


def rung(step: int, name: str, auc: float, side: str = "rejected") -> LadderRung:
    return LadderRung.model_validate(
        {
            "training": "preference",
            "step": step,
            "side": side,
            "rung": name,
            "positions": 16,
            "auc": auc,
            "right": auc,
            "flow": 0.002,
            "flow_measured": 0.004,
        }
    )


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


def test_the_ladder_names_the_lowest_rung_that_is_enough() -> None:
    rungs = [
        rung(step, name, auc, side)
        for step in (0, 5)
        for side, areas in (("chosen", (0.5, 0.8)), ("rejected", (0.6, 0.99)))
        for name, auc in zip(("logits", "weights"), areas, strict=True)
    ]
    figure, table = ladder_figure(rungs, TITLES), ladder_section(rungs, TITLES)
    assert figure is not None
    assert table is not None
    assert (
        "under DPO, chosen: none, all weights comes nearest (0.8) and "
        "DPO, rejected: all weights (AUC 0.99)." in figure.message
    )
    assert "DPO, rejectedone softmax0.60.60.0020.004" in "".join(Parsed(table.markup).words)
    assert (ladder_figure([], TITLES), ladder_section([], TITLES)) == (None, None)


def test_the_sentence_tells_what_the_last_state_shows() -> None:
    figure = squeezing_figure(found(), TITLES)
    assert figure is not None
    assert (
        "under DPO y* took 75.0% [all 4 equal] and the answers’ own tokens 10.0%" in figure.message
    )
    assert "under SFT y* took 30.0" in figure.message
    assert [trace.x for trace in figure.plot.data if trace.name.startswith("y*")] == [(5,), (5, 9)]


def test_nothing_that_rose_has_no_figure() -> None:
    flat = [row.model_copy(update={"risen": 0.0, "argmax": 0.0}) for row in mass("sft", 1, 0, 0)]
    assert squeezing_figure(Squeezing(tuple(flat)), TITLES) is None
    assert squeezing_figure(Squeezing(), TITLES) is None
    assert "No recorded step" in forecast_section((), TITLES).markup
    assert "No answer was generated" in repeater_section((), TITLES).markup


def test_forecasts_and_repeaters_are_counted() -> None:
    told = "".join(Parsed(forecast_section(found().forecasts, TITLES).markup).words)
    assert "AUC of 0.81 to 0.93 on rejected answers under DPO" in told
    repeated = repeater_section(found().generations, TITLES).markup
    assert "SFT 0 of 1" in repeated
    assert "DPO 1 of 1" in repeated
    empty = foretold(0, float("nan"))
    assert "AUC" in forecast_section([empty], TITLES).markup


def test_names_of_others_are_shown_and_never_obeyed(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    rows = tuple(row.model_copy(update={"training": evil}) for row in found().risen)
    said = tuple(one.model_copy(update={"model": evil}) for one in found().generations)
    write_report(replace(study(), squeezing=Squeezing(rows, (), said)), tmp_path)
    assert evil not in (tmp_path / "report.html").read_text()


def test_the_page_has_the_part_and_says_that_the_alarm_rang(tmp_path: Path) -> None:
    sft, dpo = study().trainings
    ring = AlarmRing(step=40, gap=27.25, rise=5.25, stopped=True)
    inputs = replace(study(), squeezing=found(), trainings=(sft, replace(dpo, alarm=ring)))
    means = write_report(inputs, tmp_path)["means"]
    assert means["squeeze/index/preference"] == {"mean": 0.75, "low": 0.75, "high": 0.75, "n": 4}
    page = Parsed((tmp_path / "report.html").read_text())
    words = "".join(page.words)
    for part in (
        "Where the probability that rose went",
        "Predicted token by token",
        "Who repeats themselves",
    ):
        assert part in words
    assert "The alarm ended DPO at step 40, where the gap y* − y⁺ had grown by 5.25" in words
    assert words.count("The alarm") == 1
