"""The report's part on squeezing: what it says follows the rows, whatever they hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dynolab.evaluation.samples import repetition
from dynolab.report.inputs.study import Squeezing
from dynolab.report.page import Words
from dynolab.report.study.answers import repeater_section
from dynolab.report.study.learning_paths import squeezing_figure
from dynolab.report.study.page import write_report
from dynolab.report.study.tables import forecast_section
from dynolab.results.study import AlarmRing, Generation, RisenMass
from tests.report.parsed import Parsed, words_of
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
    sft, dpo = study().trainings
    ring = AlarmRing(step=40, gap=27.25, rise=5.25, stopped=True)
    inputs = replace(study(), squeezing=found(), trainings=(sft, replace(dpo, alarm=ring)))
    means = write_report(inputs, tmp_path)["means"]
    assert means["squeeze/index/preference"] == {"mean": 0.75, "low": 0.75, "high": 0.75, "n": 4}
    assert "5.25" in words_of(tmp_path / "report.html")
