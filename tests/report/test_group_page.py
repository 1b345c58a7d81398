"""The page of trainings on groups holds the numbers of its runs, and obeys no text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dynolab.claims.arms import assess_arms
from dynolab.comparisons.arm_table import START
from dynolab.objectives import DPOConfig
from dynolab.report.comparison.groups import write_group_page
from dynolab.report.inputs.arms import Evaluated, GroupPageInputs, curve
from dynolab.results.groups import PromptScore
from dynolab.rollouts.passes import pass_at_k
from dynolab.statistics import mean_interval
from tests.report.groups import SAMPLES, comparison
from tests.report.parsed import CANARY, check_figures, obeys_no_text, words_of


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
    both = [np.mean([row.both for row in run.choices]) for run in inputs.of_arm("nthr")]
    assert table.mean("nthr", "tokens/precision").mean == pytest.approx(np.mean(both) / 10)
    assert table.mean("nthr", "tokens/recall").mean == pytest.approx(np.mean(both) / 20)
    assert not table.mean("grpo", "tokens/precision").n


def test_of_one_seed_a_figure_has_its_interval_over_prompts_and_a_difference_none() -> None:
    inputs = comparison(seeds=(0,))
    table = inputs.table()
    assert table.mean("simko", "train/pass_at_4") == mean_interval(passed(inputs, 0, "train"))
    assert np.isnan(table.difference("simko", "grpo", "train/pass_at_4").low)


def test_curves_take_the_steps_that_all_seeds_have() -> None:
    runs = comparison().of_arm("grpo")
    steps, values = curve(
        [runs[0], replace(runs[1], metrics=runs[1].metrics[:5])], "rollout/entropy"
    )
    assert steps.tolist() == [1, 2, 3, 4, 5]
    assert values.shape == (5, 2)
    assert curve(runs, "rollout/none")[1].shape == (0, 3)


def by_way(inputs: GroupPageInputs) -> GroupPageInputs:
    """The comparison in the world of two strategies: training loses the one that is no habit."""

    def of_two(evaluated: Evaluated, other: int) -> Evaluated:
        rows = [row.model_copy(update=counts(row, other)) for row in evaluated.prompts]
        return replace(evaluated, prompts=tuple(rows))

    def counts(row: PromptScore, other: int) -> dict[str, int]:
        return {"by_habit": row.samples - other, "by_other_way": other}

    runs = {
        key: replace(run, evaluated=of_two(run.evaluated, 0)) for key, run in inputs.runs.items()
    }
    starts = {seed: of_two(start, 3 + (seed == 2)) for seed, start in inputs.starts.items()}
    return replace(inputs, runs=runs, starts=starts)


def test_shares_of_two_strategies_are_on_the_page_and_judged(tmp_path: Path) -> None:
    inputs = by_way(comparison())
    lost = inputs.table().difference("grpo", START, "heldout/by_other_way")
    assert lost == mean_interval(np.array([-3, -3, -4]) / SAMPLES)
    judged = outcomes(inputs)
    assert judged["grpo/heldout/by_other_way"] == judged["grpo/train/by_other_way"] == "holds"
    write_group_page(inputs, tmp_path)
    assert "by the other strategy, %" in words_of(tmp_path / "grpo.html", " ")
    write_group_page(comparison(), tmp_path)
    assert "strategy" not in words_of(tmp_path / "grpo.html", " ")


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


@pytest.mark.parametrize("seeds", [(0, 1, 2), (4,)])
def test_the_page_has_every_run_and_its_difference_from_the_baseline(
    seeds: tuple[int, ...], tmp_path: Path
) -> None:
    metrics = write_group_page(comparison(CANARY, seeds), tmp_path)
    obeys_no_text(tmp_path, "grpo.html")
    assert check_figures(tmp_path, "grpo.html") >= 4
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert metrics == summary["metrics"]
    assert sum(count for name, count in metrics.items() if name.startswith("claims/")) == 14
    assert metrics["grpo/train/pass_at_1"] == summary["means"]["grpo/train/pass_at_1"]["mean"]
    assert "nthr/displaced/share" in summary["differences"]
    gained = summary["changes"]["grpo/heldout/pass_at_1"]["mean"]
    before, after = (metrics[f"{run}/heldout/pass_at_1"] for run in (START, "grpo"))
    assert gained == pytest.approx(after - before)
    words = words_of(tmp_path / "grpo.html", " ")
    assert "nan" not in words.split() and ("✓ best" in words) == (len(seeds) > 1)


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
    assert write_group_page(left, tmp_path)["claims/not_measured"] == 1
