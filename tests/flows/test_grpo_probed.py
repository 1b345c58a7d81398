"""A comparison whose arms are probed and recorded, in a world of sums."""

from __future__ import annotations

from typing import Any

import pytest

from dynolab.results.groups import CompletionForce, QuestionDisplacement, TokenChoice
from dynolab.rollouts.rewards import ALLOWED
from flows.grpo import FLOW
from tests.flows.analysed import Analysed
from tests.flows.test_grpo_flow import PLAIN, SMALL

PROBED: dict[str, Any] = SMALL | {
    "name": "probed",
    "seeds": [3],
    "data": {"world": {"name": "sums", "train_pairs": 8, "heldout_pairs": 4, "corpus_rows": 32}},
    "base": {"training": {"engine": PLAIN, "steps": 2, "batch_size": 4}},
    "sft": None,
    "training": SMALL["training"] | {"probe_every": 1, "record_steps": [1]},
    "arms": {
        "grpo": {"name": "grpo", "entropy": 0.1},
        "nthr": {"name": "grpo", "advantage_rule": {"name": "nthr"}},
        "simko": {"name": "simko"},
    },
    "squeezing": {"pairs": 3},
    "forces": {"pairs": 3},
}


def test_the_page_has_gap_squeezing_index_and_forces_of_probed_arms(analysed: Analysed) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ALLOWED, "tests.training.rewards")
        results = analysed.run_plan(analysed.plan(FLOW, PROBED))
    metrics = results["grpo-page"].metrics
    for arm in PROBED["arms"]:
        assert 0 <= metrics[f"{arm}/squeeze/index"] <= 1
        assert {f"{arm}/train/gap", f"{arm}/heldout/repeaters"} <= set(metrics)

    tested = results["nthr-3-displacement"]
    questions = {
        row.id for row in analysed.rows(tested, "displacement.jsonl", QuestionDisplacement)
    }
    completions = analysed.rows(tested, "completions.jsonl", CompletionForce)
    choices = analysed.rows(tested, "token_choice.jsonl", TokenChoice)
    assert questions == {row.id for row in choices} == {row.id for row in completions}
    assert len(completions) == 4 * len(questions)
    assert all(row.both <= min(row.chosen, row.harmful) <= row.wrong for row in choices)
    plain = results["grpo-3-displacement"]
    assert len(analysed.rows(plain, "completions.jsonl", CompletionForce)) == len(completions)
    assert not analysed.rows(plain, "token_choice.jsonl", TokenChoice)
    assert not analysed.rows(results["simko-3-displacement"], "completions.jsonl", CompletionForce)
