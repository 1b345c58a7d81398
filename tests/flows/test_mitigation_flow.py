"""Compared preference trainings as a flow: what stages compute, share, survive and refuse."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynolab.data.batches import draw
from dynolab.data.rows import read_value
from dynolab.errors import DIVERGED, ConfigError
from dynolab.objectives import build_objective
from dynolab.objectives.sft import SFTExtendedConfig
from dynolab.report.inputs.study import read_compared
from dynolab.results.arms import Divergence
from dynolab.results.judges import Judgement, PolicyAnswer
from dynolab.training.config import GroupTrainConfig, TrainConfig
from flows import mitigation
from flows.flow import Plan
from flows.mitigation import MitigationParameters
from flows.parameters.validation import validated
from flows.study.flow import STUDY
from tasks.report import ReportConfig
from tasks.runtime.work import StageResult
from tests.flows.analysed import Analysed
from tests.flows.in_process import InProcess

PLAIN = {"kind": "plain", "ranks": 1}
SHARED: dict[str, Any] = {
    "name": "small",
    "seeds": [0, 1],
    "data": {"world": {"entities": 20, "train_pairs": 12, "heldout_pairs": 6, "corpus_rows": 64}},
    "base": {"training": {"engine": PLAIN, "steps": 2, "batch_size": 4}},
    "sft": {"engine": PLAIN, "steps": 2, "batch_size": 4, "probe_every": 1},
    "training": {
        "engine": PLAIN,
        "steps": 2,
        "batch_size": 4,
        "probe_every": 1,
        "overlong": "drop",
        "optimizer": {"name": "sgd", "learning_rate": 0.01},
    },
    "answers": {"samples": 2, "prompts": 3, "max_new_tokens": 6},
    # A model of two steps says nothing that the world's own rewards tell apart.
    "on_policy": {"rewards": [{"name": "tests.training.rewards.vowels"}], "max_new_tokens": 6},
}
ARMS: dict[str, Any] = {
    "dpo": {},
    "extended": {"start": "extended"},
    "extended-half": {"start": "extended_half"},
    "resampled": {"pairs": "resampled"},
    "on-policy": {"pairs": "on_policy"},
    "on-policy-ipo": {"pairs": "on_policy", "objective": {"name": "ipo"}},
    "sppo": {
        "objective": {"name": "sppo", "beta": 0.1, "labels": "soft"},
        "pairs": "on_policy",
        "updates_per_rollout": 2,
    },
    "filter": {"filter": {"by": "ches", "drop": 0.5}},
    "alarm": {"alarm": {"rise": 1e-9}, "learning_rate": 0.5},
    "wild": {"learning_rate": 1e30},
}
SMALL = SHARED | {"arms": ARMS}


def planned(lab: InProcess, **changes: Any) -> Plan:
    return lab.plan(mitigation.FLOW, SMALL | changes)


@pytest.fixture(scope="module")
def results(analysed: Analysed) -> dict[str, StageResult]:
    """Every stage's result, by step."""
    return analysed.run_plan(planned(analysed))


def test_arms_share_their_start_and_nothing_is_computed_twice(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    plan = planned(analysed)
    assert analysed.to_run(plan) == set()
    sampling = next(step.config for step in plan.steps if step.name == "on-policy-1")
    assert isinstance(sampling, GroupTrainConfig) and sampling.completions == 2
    reads = {step.name: dict(step.inputs) for step in plan.steps}
    own = {"data": "data-1", "prompts": "prompts-1", "model": "sft-1"}
    wanted = {
        "dpo-1": {"data": "data-1", "model": "sft-1"},
        "extended-1": {"data": "data-1", "model": "sft-extended-1"},
        "extended-half-1": {"data": "data-1", "model": "sft-extended-half-1"},
        "resampled-1": {"data": "sampled-sft-1", "model": "sft-1"},
        "on-policy-1": own,
        "on-policy-ipo-1": own,
        "filter-1": {"data": "filter-1-filter", "model": "sft-1"},
    }
    assert {name: reads[name] for name in wanted} == wanted


def test_an_arm_that_diverges_is_a_result_and_the_others_go_on(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    wild = analysed.folder(results["wild-0"])
    divergence = read_value(wild / "divergence.json", Divergence)
    assert "diverged on the batch" in divergence.reason and divergence.step in (0, 1, 2)
    assert not (wild / "model").exists()
    assert results["wild-0"].metrics["diverged"] == 1.0
    assert list(analysed.platform.settings.home.glob(f"store/stages/arm/*/logs/*/{DIVERGED}"))
    assert analysed.text(results["wild-0-said"], "answers.jsonl") == ""
    judgements = analysed.rows(results["judge-0"], "judgements.jsonl", Judgement)
    assert {judgement.a for judgement in judgements} == set(ARMS) - {"dpo", "wild"}
    summary = analysed.summary(results["mitigation-page"])
    assert "diverged" in summary["ends"]["wild"]
    assert summary["metrics"]["wild/diverged"] == 2.0
    assert "dpo/train/gap" in summary["metrics"] and "wild/train/gap" not in summary["metrics"]


def test_answers_are_drawn_alike_and_judged_prompt_by_prompt(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    dpo, extended = (
        analysed.rows(results[f"{arm}-0-said"], "answers.jsonl", PolicyAnswer)
        for arm in ("dpo", "extended")
    )
    assert [answer.id for answer in dpo] == [answer.id for answer in extended]
    assert len(dpo) == 2 * 2 * 3 and all(answer.truth for answer in dpo)
    figures = json.loads(analysed.text(results["dpo-0-said"], "figures.json"))
    assert figures["heldout/entropy"]["n"] == 3
    page = results["mitigation-page"].metrics
    assert 0 <= page["extended/heldout/won"] <= 1
    assert "dpo/heldout/won" not in page


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1, 1]}, "seeds = [1, 1]: name every seed once"),
        ({"baseline": "grpo"}, "baseline = 'grpo': choose one of dpo, extended"),
        ({"arms": {"sft-2": {}}}, "arms = 'sft-2': a shared step has this name"),
        (
            {"arms": {"a": {"pairs": "on_policy", "filter": {"by": "ches", "drop": 0.5}}}},
            "arms.a = 'ches': ranks the data's pairs, but pairs: on_policy trains",
        ),
        (
            {"arms": {"a": {"updates_per_rollout": 2}}},
            "arms.a = 2: pairs: given samples no answers in training; set pairs: on_policy",
        ),
        (
            {"on_policy": {"rewards": [{"name": "os.system"}]}},
            "on_policy.rewards = 'os.system': use one of exact",
        ),
        (
            {
                "data": {"source": "file", "path": "x.jsonl"},
                "base": {"source": "x"},
                "judge": {"name": "log_prob"},
                "on_policy": {},
            },
            "arms.on-policy.pairs = 'on_policy': the default on_policy.rewards fit only the",
        ),
        (
            {"sft": {"objective": {"name": "sft_extended"}}},
            "sft.objective = 'sft_extended': must be sft, on chosen answers",
        ),
        (
            {"sft": {"engine": PLAIN, "batch_size": 5}},
            "sft.batch_size = 5: extended SFT halves it, for two answers per pair: "
            "set a multiple of 2",
        ),
        (
            {"arms": {"a": {"objective": {"name": "sft"}}}},
            "arms.a = 'sft': is not a loss on pairs; choose one of cpo",
        ),
        (
            {"training": {"objective": {"name": "dpo"}, "probe_every": 1}},
            "training.objective = 'dpo': every arm has its own objective",
        ),
        ({"training": {"engine": PLAIN}}, "training.probe_every = 0: arms are compared by probes"),
        (
            {"data": {"source": "file", "path": "x.jsonl"}, "base": {"source": "x"}},
            "judge = 'exact': its default rewards fit only the built-in world",
        ),
        ({"data": {"source": "file", "path": "x.jsonl"}}, "base.source = 'builtin'"),
        ({"arms": {}}, "arms = "),
        (
            {"sft": None},
            "arms.extended.start = 'extended': sft is null, so that only base is there; set base",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        mitigation.mitigation_steps(validated(MitigationParameters, SMALL | changes))


def test_without_sft_arms_start_from_the_base_model() -> None:
    arms = {"dpo": {}, "filter": {"filter": {"by": "ches", "drop": 0.5}}}
    own = validated(MitigationParameters, SMALL | {"sft": None, "arms": arms})
    steps = {step.name: step for step in mitigation.mitigation_steps(own)}
    assert not any(name.startswith("sft") for name in steps)
    for name in ("dpo-1", "filter-1", "audit-dpo-base-1"):
        assert steps[name].inputs["model"] == "base-1"


def weights_of_chosen(config: TrainConfig, rows: int) -> dict[int, Fraction]:
    """By training row what its chosen answer weighs in all steps together, in 1/batch_size."""
    weights: dict[int, Fraction] = defaultdict(Fraction)
    sides = len(build_objective(config.objective).sides)
    for step in range(config.steps):
        for row in draw(step, config.batch_size, rows, config.seed):
            weights[row] += Fraction(1, config.batch_size * sides)
    return weights


@pytest.mark.parametrize("ranks", [1, 2])
def test_extension_leaves_a_chosen_answer_the_weight_that_it_has_in_sft(ranks: int) -> None:
    engine = PLAIN if ranks == 1 else {"kind": "deepspeed", "ranks": ranks}
    sft = {
        "engine": engine,
        "steps": 9,
        "batch_size": 8,
        "micro_batch_size": 4,
        "probe_every": 3,
        "warmup_steps": 2,
        "objective": {"name": "sft"},
    }
    arms = {label: ARMS[label] for label in ("dpo", "extended", "extended-half")}
    parameters = validated(MitigationParameters, SMALL | {"sft": sft, "arms": arms})
    known = {step.name: step.config for step in mitigation.mitigation_steps(parameters)}
    plain, both, half = (known[name] for name in ("sft-0", "sft-extended-0", "sft-extended-half-0"))
    assert both.objective == half.objective == SFTExtendedConfig()
    weights = weights_of_chosen(plain, 12)
    assert weights_of_chosen(both, 12) == weights
    assert sum(weights_of_chosen(half, 12).values()) == sum(weights.values()) / 2
    assert (both.steps, both.batch_size, both.micro_examples) == (18, 4, 2)
    assert both.accumulation == plain.accumulation
    assert (both.probe_every, both.warmup_steps, both.optimizer) == (6, 2, plain.optimizer)


def test_finished_comparisons_are_the_inputs_of_a_study_s_report(
    analysed: Analysed, results: dict[str, StageResult], tmp_path: Path
) -> None:
    file = tmp_path / "mitigation.yaml"
    file.write_text(yaml.safe_dump(SMALL, sort_keys=False))
    plan = analysed.plan(STUDY, {"comparisons": {"mitigation": str(file)}})
    made = results["mitigation-page"]
    assert plan.existing == {"mitigation": made.model_copy(update={"cached": True})}
    report = plan.steps[-1]
    assert report.inputs["mitigation"] == "mitigation"
    assert isinstance(report.config, ReportConfig)
    assert report.config.missing == {}
    compared = read_compared(analysed.folder(made), None, missing={})
    assert compared.remedies is not None and list(compared.remedies.arms) == list(ARMS)
    assert compared.findings == ()
