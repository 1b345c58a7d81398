"""Recorded steps of every kind of training, through the stages that analyse them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from dynolab.data.encode import Encoder
from dynolab.data.rows import read_value
from dynolab.data.sources.load import DataConfig
from dynolab.forces import ForceMap, split_step
from dynolab.results.forces import AnalysisFacts, PairForce, ResponseTermsRow
from dynolab.results.study import ForceRow, TokenMap
from dynolab.training.config import GroupTrainConfig, TrainConfig
from models.language import folder_context, load_tokenizer
from tasks.data import PROMPTS
from tasks.force_map import ANALYSIS, AnalysisJob
from tasks.forces import FORCES, ForcesConfig
from tasks.runtime.work import StageResult
from tasks.shared.policies import load_policy
from tasks.shared.selection import SelectionConfig, observed_answers
from tasks.training import GROUP, SFT
from tests.flows.analysed import PLAIN, WORLD, Analysed

STEP = 1  # the second step: adapters have moved, momentum has a past
MOMENTUM = {"name": "sgd", "learning_rate": 0.01, "momentum": 0.5}
ALL: dict[str, Any] = {
    "engine": PLAIN,
    "steps": 2,
    "batch_size": 4,
    "record_steps": (STEP,),
    "optimizer": MOMENTUM,
}
SAMPLED: dict[str, Any] = ALL | {
    "completions": 4,
    "max_new_tokens": 6,
    "updates_per_rollout": 2,
    "rewards": [{"name": "tests.training.rewards.some_words"}],
}
LORA = {"lora": {"rank": 2, "alpha": 8}}
KINDS: dict[str, dict[str, Any]] = {
    "adapters": ALL | LORA | {"objective": {"name": "sft"}},
    "adapters on groups": SAMPLED | LORA | {"objective": {"name": "grpo", "kl": 0.05}},
    "groups": SAMPLED | {"objective": {"name": "grpo", "kl": 0.05}},
    "warm groups": SAMPLED | {"objective": {"name": "grpo"}, "temperature": 0.7},
    "simko": SAMPLED | {"objective": {"name": "simko", "share": 0.2}},
    "online pairs": SAMPLED | {"objective": {"name": "dpo"}},
}
SMALL = {"observed_pairs": 1, "updating_pairs": 2}


@pytest.fixture(scope="module")
def trained(analysed: Analysed) -> dict[str, StageResult]:
    prompts = analysed.run(PROMPTS, DataConfig(world=WORLD))
    results = {}
    for name, settings in KINDS.items():
        inputs = {"data": analysed.data, "model": analysed.sft}
        if "completions" in settings:
            config: Any = GroupTrainConfig.model_validate(settings)
            results[name] = analysed.run(GROUP, config, prompts=prompts, **inputs)
        else:
            results[name] = analysed.run(SFT, TrainConfig.model_validate(settings), **inputs)
    return results


def run_analysis(lab: Analysed, model: StageResult, **changes: Any) -> StageResult:
    config = AnalysisJob.model_validate(SMALL | {"step": STEP} | changes)
    return lab.run(ANALYSIS, config, data=lab.data, model=model)


def gap(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@pytest.mark.parametrize("kind", KINDS)
def test_forces_predict_what_the_step_did(
    analysed: Analysed, trained: dict[str, StageResult], kind: str
) -> None:
    result = analysed.run(FORCES, ForcesConfig(pairs=2), data=analysed.data, trained=trained[kind])
    assert result.metrics["recorded_steps"] == 1
    errors = ("largest_replay_error", "largest_closure_error")
    assert max(result.metrics[name] for name in errors) < 1e-4
    rows = analysed.rows(result, "forces.jsonl", ForceRow)
    assert {row.stage for row in rows} == {KINDS[kind]["objective"]["name"]}
    measured, predicted = (
        np.array([getattr(row, name) for row in rows]) for name in ("measured", "predicted")
    )
    assert gap(predicted, measured) < 0.02
    pushes = read_value(analysed.folder(result) / "token_map.json", TokenMap)
    assert np.isfinite(pushes.force).all()


def totals_gap(lab: Analysed, result: StageResult, model: StageResult) -> float:
    """Between the map's sums and the first order along both sides of the recorded step."""
    folder = lab.folder(model, "model")
    adapter = lab.folder(model, "adapter") if (folder.parent / "adapter").exists() else None
    policy = load_policy(folder, adapter)
    record = lab.record(model, STEP)
    split = split_step(record, policy)
    encoder = Encoder(load_tokenizer(folder), folder_context(folder), "error")
    observed = observed_answers(lab.folder(lab.data), SelectionConfig(**SMALL), encoder)
    batch = policy.batch([answer for _, answer in observed])
    sides = [split.from_chosen, split.from_rejected]
    along = batch.sequence_sum(policy.change_along(record.before, sides, batch).sum(0))
    totals: dict[tuple[str, str], float] = defaultdict(float)
    for row in lab.rows(result, "totals.jsonl", PairForce):
        totals[row.observed_id, row.kind] += row.total
    expected = {
        (row.pair_id, row.kind): float(change)
        for (row, _), change in zip(observed, along, strict=True)
    }
    assert totals.keys() == expected.keys()
    return gap(np.array(list(totals.values())), np.array([expected[answer] for answer in totals]))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_step_trained_on_is_what_pushes(
    analysed: Analysed, trained: dict[str, StageResult], kind: str
) -> None:
    """The map in the step's metric adds up to what its sides did; of adapters, to theirs alone."""
    result = run_analysis(analysed, trained[kind], updating="recorded")
    folder = analysed.folder(result)
    facts = read_value(folder / "analysis.json", AnalysisFacts)
    assert facts.objective == KINDS[kind]["objective"]["name"]
    assert facts.grouped == ("completions" in KINDS[kind] and kind != "online pairs")
    assert facts.adapters == ("lora" in KINDS[kind])
    assert totals_gap(analysed, result, trained[kind]) < 1e-4
    terms = analysed.rows(result, "terms.jsonl", ResponseTermsRow)
    updating = [row for row in terms if row.role == "updating"]
    pushing = ForceMap.open(folder / "map").updating
    assert [(row.id, row.kind) for row in updating] == [(side.id, side.side) for side in pushing]
    for row in updating:
        sign = 1 if row.kind == "chosen" else -1
        assert min(sign * rate for rate in row.learning_rate) >= 0
    for pushes in analysed.rows(result, "token_maps.jsonl", TokenMap):
        assert pushes.chosen_tokens
        assert bool(pushes.rejected_tokens) == (kind != "adapters")
