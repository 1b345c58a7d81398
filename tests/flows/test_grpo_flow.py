"""The comparison of arms as a flow: what its stages compute, share and refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynolab.comparisons.arm_table import WAYS
from dynolab.data.rows import PromptRow
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.results.groups import (
    CompletionForce,
    LikelihoodChange,
    PromptScore,
    QuestionDisplacement,
    RightAnswer,
    TokenChoice,
)
from dynolab.statistics import mean_interval
from dynolab.training.reference import score_responses
from flows.flow import Plan
from flows.grpo import FLOW, GrpoParameters, grpo_steps
from flows.parameters.validation import validated
from models.language import load_language_model
from tasks.runtime.work import StageResult
from tests.flows.analysed import Analysed
from tests.flows.in_process import InProcess

PLAIN = {"kind": "plain", "ranks": 1}
SMALL: dict[str, Any] = {
    "name": "small",
    "seeds": [0, 1],
    "data": {"world": {"entities": 20, "train_pairs": 12, "heldout_pairs": 6, "corpus_rows": 64}},
    "base": {"training": {"engine": PLAIN, "steps": 2, "batch_size": 4}},
    "sft": {"engine": PLAIN, "steps": 2, "batch_size": 4},
    "training": {
        "rewards": [{"name": "tests.training.rewards.some_words"}],
        "engine": PLAIN,
        "steps": 2,
        "batch_size": 4,
        "completions": 4,
        "max_new_tokens": 4,
    },
    "arms": {
        "grpo": {"name": "grpo"},
        "nthr": {"name": "grpo", "kl": 0.1, "advantage_rule": {"name": "nthr"}},
        "pairs": {"name": "dpo"},
    },
    "evaluation": {"k": 2, "samples": 8, "prompts": 5},
    "displacement": {"questions": 4},
}


def planned(lab: InProcess, **changes: Any) -> Plan:
    return lab.plan(FLOW, SMALL | changes)


@pytest.fixture(scope="module")
def results(analysed: Analysed) -> dict[str, StageResult]:
    """Every stage's result, by step."""
    return analysed.run_plan(planned(analysed))


def test_arms_share_their_start_and_nothing_is_computed_twice(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    plan = planned(analysed)
    assert analysed.to_run(plan) == set()
    reads = {step.name: dict(step.inputs) for step in plan.steps}
    for arm in SMALL["arms"]:
        assert reads[f"{arm}-1"] == {"prompts": "prompts-1", "model": "sft-1"}
    (row,) = (step.compared_by for step in plan.steps if step.name == "nthr-1-evaluation")
    assert row["arm"] == "nthr" and row["seed"] == "1", "a row of MLflow's table of arms"
    assert row["objective.advantage_rule.name"] == "nthr"
    more = planned(analysed, arms=SMALL["arms"] | {"simko": {"name": "simko"}})
    assert analysed.to_run(more) == {
        f"simko-{seed}{part}" for seed in (0, 1) for part in ("", "-evaluation", "-displacement")
    } | {"grpo-page"}


def test_an_evaluation_counts_what_a_reward_says(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    start = results["start-0"]
    scores = analysed.rows(start, "prompts.jsonl", PromptScore)
    asked = [
        row.id
        for split in ("train", "heldout")
        for row in analysed.rows(results["prompts-0"], f"{split}.jsonl", PromptRow)[:5]
    ]
    assert [(score.id, score.samples) for score in scores] == [(row, 8) for row in asked]
    right = analysed.rows(start, "right.jsonl", RightAnswer)
    assert len(asked) == 10 and len(right) == sum(score.right for score in scores) > 0
    shares = np.array([score.right / 8 for score in scores if score.split == "heldout"])
    assert start.metrics["heldout/pass_at_1"] == pytest.approx(shares.mean())
    figures = json.loads(analysed.text(start, "figures.json"))
    assert figures["heldout/pass_at_1"] == pytest.approx(mean_interval(shares).as_dict())


def test_right_answers_are_followed_into_the_trained_model(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    right = analysed.rows(results["start-1"], "right.jsonl", RightAnswer)
    changes = analysed.rows(results["grpo-1-evaluation"], "likelihood.jsonl", LikelihoodChange)
    assert sum(change.answers for change in changes) == len(right)
    before, after = (
        [
            float(logps.sum())
            for logps in score_responses(
                ResponseLogits(load_language_model(analysed.folder(results[name], "model"))),
                [answer.encoded for answer in right],
                0,
                1,
            )
        ]
        for name in ("sft-1", "grpo-1")
    )
    assert [answer.logp for answer in right] == pytest.approx(before, abs=1e-4)
    first = [at for at, answer in enumerate(right) if answer.id == changes[0].id]
    assert changes[0].before == pytest.approx(np.mean([before[at] for at in first]), abs=1e-4)
    assert changes[0].after == pytest.approx(np.mean([after[at] for at in first]), abs=1e-4)


def test_displacement_is_tested_where_answers_are_partly_right(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    assert "pairs-0-displacement" not in results  # its objective is not one on groups
    questions = {}
    for name in ("grpo-1-displacement", "nthr-1-displacement"):
        rows = analysed.rows(results[name], "displacement.jsonl", QuestionDisplacement)
        completions = analysed.rows(results[name], "completions.jsonl", CompletionForce)
        questions[name] = {row.id for row in rows}
        assert {row.id for row in completions} == questions[name]
        assert len(completions) == 4 * len(rows)
        assert 0 < len(rows) <= 4
        assert all(0 < len(row.changes) < row.samples for row in rows)
        share = np.mean([row.mean <= 0 for row in rows])
        assert results[name].metrics["displaced/share"] == pytest.approx(share)
    choices = analysed.rows(results["nthr-1-displacement"], "token_choice.jsonl", TokenChoice)
    assert {row.id for row in choices} == questions["nthr-1-displacement"]
    assert all(row.both <= min(row.chosen, row.harmful) <= row.wrong for row in choices)
    assert not analysed.rows(results["grpo-1-displacement"], "token_choice.jsonl", TokenChoice)


def test_the_page_and_mlflow_have_every_arm(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    page = results["grpo-page"]
    for arm in ("before", *SMALL["arms"]):
        for split in ("train", "heldout"):
            assert 0 <= page.metrics[f"{arm}/{split}/pass_at_2"] <= 1
    runs = {run.name: run for run in analysed.tracking.runs}
    assert {"report/grpo.html", "report/summary.json"} <= set(runs["grpo-page"].artifacts)
    table = json.loads(runs["grpo-0-evaluation"].artifacts["tables/prompts.json"])
    assert set(table["columns"]) == set(PromptScore.model_fields) - {*WAYS}
    logged = {name for _, values in runs["start-0"].values for name in values}
    assert {"eval/train/pass_at_1", "eval/heldout/entropy"} <= logged


def test_given_rows_and_weights_are_shared_by_all_seeds(tmp_path: Path) -> None:
    given = {
        "data": {"source": "file", "path": str(tmp_path / "rows.jsonl"), "format": "prompts"},
        "base": {"source": str(tmp_path)},
        "sft": None,
    }
    parameters = validated(GrpoParameters, SMALL | given)
    steps = {step.name: step for step in grpo_steps(parameters)}
    assert not [name for name in steps if name.startswith(("sft", "data"))]
    assert steps["prompts-0"].config == steps["prompts-1"].config
    assert steps["base-0"].config == steps["base-1"].config
    assert steps["grpo-0"].config != steps["grpo-1"].config
    assert steps["grpo-0"].inputs["model"] == "base-0"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": []}, "seeds = "),
        ({"seeds": [1, 1]}, "seeds = [1, 1]: name every seed once"),
        ({"seeds": [-1]}, "seeds.0 = -1"),
        ({"baseline": "dpo"}, "baseline = 'dpo': choose one of grpo, nthr, pairs"),
        ({"arms": {}}, "arms = {}"),
        ({"arms": {"start": {"name": "grpo"}}}, "a shared step has this name"),
        ({"arms": {"a b": {"name": "grpo"}}}, "arms.a b"),
        ({"arms": {"x": {"name": "grop"}}}, "arms.x.name = 'grop': choose one of"),
        (
            {"arms": {"x": {"name": "grpo", "aggregation": "dr_grpo", "max_tokens": 9}}},
            "arms.x = 9: must be max_new_tokens = 4",
        ),
        (
            {"training": {"objective": {"name": "grpo"}}},
            "training.objective = 'grpo': every arm has",
        ),
        (
            {"training": {"rewards": [{"name": "os.system"}]}},
            "training.rewards = 'os.system': use one",
        ),
        ({"data": {"source": "file", "path": "x.jsonl"}}, "base.source = 'builtin'"),
        (
            {
                "data": {"world": {"name": "sums"}},
                "training": {"rewards": [{"name": "world_answer"}]},
            },
            "training.rewards = 'world_answer': fits only the world of facts; use exact",
        ),
        ({"evaluation": {"samples": 0}}, "evaluation.samples = 0"),
        (
            {"training": SMALL["training"] | {"completions": 1}},
            "training.completions = 1: rewards are compared within",
        ),
        (
            {"evaluation": {"k": 16, "samples": 16}},
            "evaluation.samples = 16: pass@16 needs at least 64 samples per prompt "
            "(4 times k); raise samples, or lower k to at most 4",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_first(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        validated(GrpoParameters, SMALL | changes)


PROBED: dict[str, Any] = SMALL | {
    "name": "probed",
    "seeds": [3],
    "data": {"world": {"name": "sums", "train_pairs": 8, "heldout_pairs": 4, "corpus_rows": 32}},
    "base": {"training": {"engine": PLAIN, "steps": 2, "batch_size": 4}},
    "sft": None,
    "training": SMALL["training"] | {"probe_every": 1, "record_steps": [1]},
    "arms": {
        "grpo": {"name": "grpo", "entropy": 0.1},
        "simko": {"name": "simko"},
    },
    "squeezing": {"pairs": 3},
    "forces": {"pairs": 3},
}


def test_the_page_has_gap_squeezing_index_and_forces_of_probed_arms(analysed: Analysed) -> None:
    results = analysed.run_plan(analysed.plan(FLOW, PROBED))
    metrics = results["grpo-page"].metrics
    for arm in PROBED["arms"]:
        assert 0 <= metrics[f"{arm}/squeeze/index"] <= 1
        assert {f"{arm}/train/gap", f"{arm}/heldout/repeaters"} <= set(metrics)
    # Its objective pushes tokens that nobody sampled, too.
    assert not analysed.rows(results["simko-3-displacement"], "completions.jsonl", CompletionForce)
