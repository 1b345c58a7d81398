"""Pages that compare runs hold their numbers: of judged policies, of remedies."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dynolab.claims.verdict import Verdict, above
from dynolab.comparisons.arm_table import LEAST_COUNT, ArmTable
from dynolab.comparisons.matched import table_of
from dynolab.comparisons.removals import removals
from dynolab.data.rows import read_value, write_rows
from dynolab.report.comparison.judges import SHOWN, write_judge_page
from dynolab.report.comparison.mitigation import write_mitigation_page
from dynolab.report.comparison.trade import trade_figure
from dynolab.report.inputs.study import read_compared
from dynolab.report.page import ANSWER
from dynolab.report.study.page import write_report
from dynolab.report.style import points, with_interval
from dynolab.report.tables import MEASURES, RIGHT_ANSWERS, standings, unlearned
from dynolab.results.arms import AFTER_EXTENDED, AFTER_SFT, ComparedArms
from dynolab.statistics import Interval
from tests.benchmarks.advice import best_marks_that_lose
from tests.report.judged import comparison
from tests.report.pairs import ARMS, mitigation
from tests.report.parsed import CANARY, Parsed, check_figures, obeys_no_text, words_of
from tests.report.synthetic import study


def test_rates_are_in_the_table_and_contradicted_prompts_come_first(tmp_path: Path) -> None:
    inputs = comparison()
    metrics = write_judge_page(inputs, tmp_path)
    rate = inputs.rates[0]
    assert metrics["win_rate/dpo/exact"] == rate.rate
    assert points(rate.interval, sign=False) in words_of(tmp_path / "judge.html")
    assert check_figures(tmp_path, "judge.html") >= 1
    answers = (tmp_path / "judge.html").read_text().split('id="prompts"')[1].split("</table>")[0]
    rows = answers.split("<tr>")[2:]
    assert len(rows) == SHOWN
    split = ["won" in row and "lost" in row for row in rows]
    assert split[0] and split == sorted(split, reverse=True)


@pytest.mark.parametrize("prompts", [1, 3])
def test_a_judge_without_verdicts_leaves_gaps_and_no_errors(prompts: int, tmp_path: Path) -> None:
    metrics = write_judge_page(
        comparison(prompts=prompts, silent=True, text=CANARY, name=CANARY), tmp_path
    )
    words = " ".join(obeys_no_text(tmp_path, "judge.html").words)
    assert "window.canary=1" in words and not re.search(r"\bnan\b", words)
    assert "win_rate/dpo/gpt" not in metrics and metrics["verdicts/unparsable"] == 4 * prompts


@pytest.mark.parametrize("seeds", [(0, 1, 2), (4,)])
def test_the_page_and_the_terminal_have_a_row_for_every_run(
    seeds: tuple[int, ...], tmp_path: Path
) -> None:
    compared = mitigation(seeds=seeds)
    write_mitigation_page(compared, tmp_path, commands={"designed": "dynolab study FILE"})
    check_figures(tmp_path, "mitigation.html")
    answer = (tmp_path / ANSWER).read_text()
    assert len(answer.splitlines()) <= 25
    change = table_of(compared).difference("dose", "dpo", "heldout/chosen")
    (row,) = (line for line in answer.splitlines() if line.startswith("dose "))
    assert f"({with_interval(change)})" in row
    words = words_of(tmp_path / "mitigation.html", " ")
    assert "nan" not in words
    assert ("✓ best" in words) == (len(seeds) > 1)
    assert answer.rstrip().endswith("dynolab study FILE" if len(seeds) > 1 else "'seeds=[4, 5, 6]'")


def test_the_picture_of_trades_has_the_tables_differences_and_rings_who_lost() -> None:
    compared = mitigation()
    figures = table_of(compared)
    drawn = trade_figure(figures, compared.others, "dpo")
    assert drawn is not None
    ring, runs = drawn.plot.data
    assert list(runs.text) == compared.others
    for place, run in enumerate(compared.others):
        margin, chosen = (
            figures.difference(run, "dpo", name) for name in ("train/margin", "heldout/chosen")
        )
        assert (runs.x[place], runs.y[place]) == pytest.approx((margin.mean, chosen.mean))
        assert runs.error_y.array[place] == pytest.approx(chosen.high - chosen.mean, abs=1e-5)
        assert runs.marker.color[place] == figures.mean(run, "heldout/won").mean
    assert ring.x == pytest.approx([runs.x[compared.others.index("dose")]])
    assert runs.marker.cmin + runs.marker.cmax == pytest.approx(1)
    assert trade_figure(figures, [], "dpo") is None


def test_followed_answers_are_on_the_page_with_the_changes_of_other_seeds(tmp_path: Path) -> None:
    compared = mitigation()
    write_mitigation_page(compared, tmp_path)
    words = words_of(tmp_path / "mitigation.html", " ")
    section = words.split("Single answers")[-1]
    assert all(own.pair_id in section for own in compared.followed)
    write_mitigation_page(compared.model_copy(update={"followed": ()}), tmp_path)
    assert 'id="followed"' not in (tmp_path / "mitigation.html").read_text()


def test_a_removal_stands_beside_its_control_which_is_no_remedy(tmp_path: Path) -> None:
    """`dose`, the best run otherwise, is taken for the control of `extended`."""
    compared = mitigation()
    arms = compared.arms | {
        "extended": compared.arms["extended"].model_copy(
            update={"filtered_by": "id", "named": ("a", "b")}
        ),
        "dose": compared.arms["dose"].model_copy(update={"filtered_by": "random", "random": 2}),
        "designed": compared.arms["designed"].model_copy(update={"filtered_by": "random"}),
    }
    with_control = compared.model_copy(update={"arms": arms})
    (removal,) = removals(with_control)
    assert (removal.run, removal.control, removal.pairs) == ("extended", "dose", 2)
    write_mitigation_page(with_control, tmp_path)
    text = (tmp_path / "mitigation.html").read_text()
    section = text.split('<section id="removals">')[1].split("</section>")[0]
    shown = (removal.against_baseline, removal.control_effect, removal.against_random)
    assert all(with_interval(effect) in section for effect in shown)
    # It is the best of the three, but does no more than random pairs.
    assert not removal.against_random.low > 0
    assert "extended</b> <span" not in text
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["removals"] == removal.effects
    write_mitigation_page(compared, tmp_path)
    assert 'id="removals"' not in (tmp_path / "mitigation.html").read_text()


def test_the_summary_says_what_diverged_and_judges_the_others(tmp_path: Path) -> None:
    compared = mitigation(lost="simpo")
    metrics = write_mitigation_page(compared, tmp_path)
    assert (metrics["simpo/diverged"], metrics["dpo/diverged"]) == (1.0, 0.0)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["ends"]["simpo"] == "seed 0 diverged after 31 steps"
    assert summary["ends"]["alarm"] == "3 of 3 ended by the alarm at step 40"
    assert summary["means"]["simpo/train/gap"]["n"] == 2
    assert summary["differences"]["simpo/train/gap"]["n"] == 2
    assert summary["matched"]["dose/gap"]["high"] < 0 < summary["matched"]["simpo/gap"]["low"]
    outcomes = {verdict["id"]: verdict["outcome"] for verdict in summary["verdicts"]}
    assert len(outcomes) == 6 * (len(ARMS) - 1)
    assert outcomes["dose/right"] == "appears" and outcomes["dose/right_heldout"] == "does not"
    assert read_value(tmp_path / "comparison.json", ComparedArms) == compared
    metrics = write_mitigation_page(mitigation(seeds=(0,), lost="simpo"), tmp_path)
    assert "simpo/train/gap" not in metrics


def test_few_equal_values_are_no_evidence() -> None:
    for n, told in ((2, "unclear"), (4, "unclear"), (5, "holds")):
        assert above("share", Interval(0.1, 0.1, 0.1, n)).outcome == told
    assert above("share", Interval(0.0, 0.0, 0.0, 2)).outcome == "fails", "none is above"


def table(counts: int = 40, **runs: dict[str, float]) -> ArmTable:
    """Runs of three seeds whose figures are the given differences from a baseline of zeros."""
    values = {"base": [dict.fromkeys((*MEASURES, *RIGHT_ANSWERS), 0.0)] * 3} | {
        run: [{name: x + 0.01 * seed for name, x in own.items()} for seed in range(3)]
        for run, own in runs.items()
    }
    return ArmTable(values, counts=dict.fromkeys(MEASURES, counts))


GOOD = {"train/chosen": 1.0, "heldout/chosen": 2.0, "matched/heldout": 0.5}
RUNS = {
    "good": GOOD,
    "better": {**GOOD, "train/fell": -0.5},
    "mixed": {**GOOD, "matched/chosen": 3.0, "heldout/fell": 0.5},
    "same": {"train/chosen": -0.01, "heldout/chosen": -0.01},
}


@pytest.mark.parametrize("name", ["heldout/right", "train/right", "heldout/won", "matched/heldout"])
def test_a_run_that_loses_by_its_answers_or_at_the_same_margin_is_not_the_best(name: str) -> None:
    runs = {"loses": {**GOOD, "train/fell": -0.5, name: -0.1}, "wins": {**GOOD, name: 0.6}}
    ranked = standings(table(**runs), list(runs), "base")
    assert [own.run for own in ranked if own.recommended] == ["wins"]


def test_no_run_of_the_stored_tables_is_marked_that_clearly_loses() -> None:
    marks = best_marks_that_lose()
    assert marks["best_marks_that_lose"] == 0 < marks["tables_with_a_best"]


def test_the_best_run_is_better_on_most_measures_and_worse_on_none() -> None:
    ranked = standings(table(**RUNS), list(RUNS), "base")
    assert [own.run for own in ranked] == ["better", "good", "mixed", "same"]
    assert [own.recommended for own in ranked] == [True, True, False, False]
    assert ranked[0].better == (*GOOD, "train/fell")
    assert ranked[2].worse == ("heldout/fell",) and ranked[3].better == ()


def test_a_tie_goes_to_the_run_that_ends_highest_held_out() -> None:
    higher = {**GOOD, "train/chosen": 0.5, "heldout/chosen": 3.0}
    ranked = standings(table(good=GOOD, higher=higher), ["good", "higher"], "base")
    assert [own.run for own in ranked] == ["higher", "good"]


def test_few_pairs_and_single_seeds_decide_nothing() -> None:
    few = standings(table(counts=LEAST_COUNT - 1, **RUNS), list(RUNS), "base")
    single = mitigation(seeds=(0,))
    once = standings(table_of(single), single.others, "dpo")
    assert not [own for own in (*few, *once) if own.better or own.worse]


def test_runs_that_do_not_prefer_chosen_answers_have_not_learned() -> None:
    figures = ArmTable({"a": [{"train/margin": -2.0}], "b": [{"train/margin": 0.1}], "c": [{}]})
    assert unlearned(figures, ["a", "b", "c"]) == ["a"]


def test_differences_at_the_same_margin_are_those_from_the_baseline() -> None:
    compared = mitigation(lost="simpo")
    figures = table_of(compared)
    assert figures.difference("dose", "dpo", "matched/gap") == figures.mean("dose", "matched/gap")
    assert figures.difference("simpo", "dpo", "matched/gap").n == 2
    assert figures.few("matched/chosen") == 0


def test_a_study_s_report_shows_findings_and_remedies_of_runs_beside_it(tmp_path: Path) -> None:
    rose = above("share of contests", Interval(0.6, 0.55, 0.7, 40))
    known = [
        Verdict.of(f"extended/won{CANARY}", AFTER_EXTENDED, CANARY, CANARY, rose),
        Verdict.of("dpo/gap", AFTER_SFT, CANARY, CANARY),
    ]
    (tmp_path / "findings").mkdir()
    write_rows(tmp_path / "findings/verdicts.jsonl", known)
    write_mitigation_page(mitigation(CANARY), tmp_path / "remedies")
    compared = read_compared(
        tmp_path / "remedies", tmp_path / "findings", missing={"mitigation": CANARY}
    )
    report = tmp_path / "report"
    write_report(replace(study(), compared=compared), report)
    page = (report / "report.html").read_text()
    assert CANARY not in page
    shown = {a.get("id") for _, a in Parsed(page).elements}
    assert {"reproduction", "remedies", "try-next"} <= shown
    assert [verdict.outcome for verdict in compared.findings] == ["holds", "not measured"]
