"""The page that compares arms: what it says follows the data, and no text of others is obeyed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dynolab.claims.groups import assess_arms
from dynolab.comparisons.arm_table import START
from dynolab.objectives import DPOConfig, GRPOConfig
from dynolab.report.figure import Figure
from dynolab.report.groups.comparisons import (
    against_figure,
    displacement_figure,
    diversity_figure,
    likelihood_figure,
)
from dynolab.report.groups.curves import curve_figure, pass_figure
from dynolab.report.groups.forces import choice_figure, completion_figure
from dynolab.report.groups.page import write_group_page
from dynolab.report.groups.tables import arm_list
from dynolab.report.inputs.arms import Evaluated, GroupPageInputs, curve
from dynolab.rollouts.passes import pass_at_k
from dynolab.statistics import mean_interval
from tests.report.groups import SAMPLES, comparison
from tests.report.parsed import CANARY, Parsed, check_figure, obeys_no_text, words_of


def figures(inputs: GroupPageInputs) -> list[Figure | None]:
    table = inputs.table()
    return [
        curve_figure(inputs),
        pass_figure(inputs, table),
        against_figure(inputs, table),
        displacement_figure(inputs, table),
        completion_figure(inputs, table),
        choice_figure(inputs, table),
        likelihood_figure(inputs, table),
        diversity_figure(inputs, table),
    ]


@pytest.mark.parametrize("seeds", [(0, 1, 2), (4,)])
def test_every_figure_says_something_and_how_it_is_read(seeds: tuple[int, ...]) -> None:
    for figure in figures(comparison(seeds=seeds)):
        check_figure(figure)


def passed(inputs: GroupPageInputs, seed: int, split: str) -> np.ndarray:
    """pass@4 of every prompt of a split after SimKO with a seed."""
    prompts = inputs.runs["simko", seed].evaluated.prompts
    return np.array([pass_at_k(SAMPLES, row.right, 4) for row in prompts if row.split == split])


def test_figures_are_means_over_prompts_then_over_seeds() -> None:
    inputs = comparison()
    table = inputs.table()
    per_seed = [passed(inputs, seed, "heldout").mean() for seed in inputs.seeds]
    assert table.mean("simko", "heldout/pass_at_4") == mean_interval(np.array(per_seed))
    before = [start.figures(4)["heldout/pass_at_4"].mean for start in inputs.starts.values()]
    assert table.difference("simko", START, "heldout/pass_at_4") == mean_interval(
        np.array(per_seed) - np.array(before)
    )


def test_of_one_seed_a_figure_has_its_interval_over_prompts_and_a_difference_none() -> None:
    inputs = comparison(seeds=(0,))
    table = inputs.table()
    assert table.mean("simko", "train/pass_at_4") == mean_interval(passed(inputs, 0, "train"))
    assert np.isnan(table.difference("simko", "grpo", "train/pass_at_4").low)
    assert "95% t-intervals over prompts" in check_figure(pass_figure(inputs, table)).note


def test_pushes_are_counted_by_arm_and_a_rule_s_choice_is_set_beside_any() -> None:
    inputs = comparison()
    table = inputs.table()
    pushed = check_figure(completion_figure(inputs, table)).message
    wrong = {
        arm: [
            row.force < 0
            for run in inputs.of_arm(arm)
            for row in run.completions
            if not row.correct
        ]
        for arm in ("grpo", "nthr")
    }
    for arm, dragging in wrong.items():
        assert f"{100 * np.mean(dragging):.0f}% under {arm}" in pushed
    chosen = check_figure(choice_figure(inputs, table)).message
    assert "Of all tokens of wrong answers 50.0% [all 3 equal] drag" in chosen
    both = [np.mean([row.both for row in run.choices]) for run in inputs.of_arm("nthr")]
    assert table.mean("nthr", "tokens/precision").mean == pytest.approx(np.mean(both) / 10)
    assert table.mean("nthr", "tokens/recall").mean == pytest.approx(np.mean(both) / 20)
    assert not table.mean("grpo", "tokens/precision").n


def test_probes_and_recorded_steps_of_the_first_seed_are_shown(tmp_path: Path) -> None:
    write_group_page(comparison(), tmp_path)
    words = words_of(tmp_path / "grpo.html", " ")
    assert "The squeezing gap" in words and "Where the probability that rose went" in words
    assert "from answers that were pushed up" in words
    assert "from answers that were pushed down" in words
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["means"]["nthr/squeeze/index"]["mean"] == pytest.approx(0.75, abs=0.03)
    gained = summary["changes"]["grpo/heldout/pass_at_1"]
    assert gained["mean"] == pytest.approx(
        summary["means"]["grpo/heldout/pass_at_1"]["mean"]
        - summary["means"]["before/heldout/pass_at_1"]["mean"]
    )


def test_differences_to_an_arm_are_taken_seed_by_seed() -> None:
    table = comparison().table()
    against = table.against("grpo")
    for name in ("train/pass_at_1", "displaced/share"):
        assert against.values("nthr", name).tolist() == [
            own - other
            for own, other in zip(
                table.values("nthr", name), table.values("grpo", name), strict=True
            )
        ]
        assert not against.values("grpo", name).any()
    assert np.isnan(against.values(START, "displaced/share")).all()


def test_the_page_says_which_arms_can_be_told_from_the_baseline() -> None:
    several, alone = (
        check_figure(against_figure(inputs, inputs.table())).message
        for inputs in (comparison(), comparison(seeds=(0,)))
    )
    displaced = several.partition("Questions displaced")[2]
    assert "nthr −40" in displaced and "random" not in displaced
    assert alone.count("no arm clearly differs from grpo") == 3


def test_every_arm_is_told_with_its_source_and_what_is_not_the_default() -> None:
    pairs = {"pairs": DPOConfig(), "gspo": GRPOConfig(ratio="sequence")}
    inputs = comparison()
    words = " ".join(Parsed(arm_list(replace(inputs, arms=inputs.arms | pairs)).markup).words)
    assert "Control of NTHR: as many tokens of wrong answers, drawn at random" in words
    assert "DPO on the best and the worst answer to a prompt" in words
    assert "ratio = sequence" in words
    for source in ("2402.03300", "2505.18830", "2510.14807"):
        assert source in words


def test_curves_take_the_steps_that_all_seeds_have() -> None:
    runs = comparison().of_arm("grpo")
    steps, values = curve(
        [runs[0], replace(runs[1], metrics=runs[1].metrics[:5])], "rollout/entropy"
    )
    assert steps.tolist() == [1, 2, 3, 4, 5]
    assert values.shape == (5, 2)
    assert curve(runs, "rollout/none")[1].shape == (0, 3)


def outcomes(inputs: GroupPageInputs) -> dict[str, str]:
    """The claims' outcomes by their ids."""
    verdicts = assess_arms(inputs.arms, "grpo", inputs.table())
    return {verdict.id: verdict.outcome for verdict in verdicts}


def test_claims_appear_where_they_hold_and_not_where_they_do_not() -> None:
    inputs = comparison()
    assert list(outcomes(inputs).values()) == ["holds"] * 14
    swapped = replace(
        inputs,
        runs=inputs.runs
        | {("nthr", seed): inputs.runs["grpo", seed] for seed in inputs.seeds}
        | {("grpo", seed): inputs.runs["nthr", seed] for seed in inputs.seeds},
    )
    assert outcomes(swapped)["nthr/displaces_fewer_than_grpo"] == "fails"
    assert set(outcomes(comparison(seeds=(0,))).values()) == {"unclear"}


def test_the_page_has_every_arm_and_its_difference_to_the_baseline(tmp_path: Path) -> None:
    metrics = write_group_page(comparison(), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert metrics == summary["metrics"]
    assert metrics["claims/appears"] == 14
    assert metrics["grpo/train/pass_at_1"] == summary["means"]["grpo/train/pass_at_1"]["mean"]
    assert "nthr/displaced/share" in summary["differences"]
    words = words_of(tmp_path / "grpo.html", " ")
    assert "4 arms with 3 seeds" in words
    assert "One update displaces fewer questions than under random" in words


def test_what_was_not_measured_leaves_the_others(tmp_path: Path) -> None:
    inputs = comparison()
    bare = {
        at: replace(
            run,
            displaced=None,
            metrics=(),
            evaluated=Evaluated(
                tuple(row for row in run.evaluated.prompts if row.split == "train")
            ),
        )
        for at, run in inputs.runs.items()
    }
    starts = {seed: Evaluated(bare["grpo", seed].evaluated.prompts) for seed in inputs.seeds}
    left = replace(
        inputs, runs=bare, starts=starts, arms={"grpo": inputs.arms["grpo"], "nthr": DPOConfig()}
    )
    assert figures(left)[0] is None and figures(left)[3] is None
    metrics = write_group_page(left, tmp_path)
    assert metrics["claims/not_measured"] == 1


def test_no_text_becomes_markup(tmp_path: Path) -> None:
    write_group_page(comparison(CANARY), tmp_path)
    obeys_no_text(tmp_path, "grpo.html")
