"""Compared preference trainings as a flow: what stages compute, share, survive and refuse."""

from __future__ import annotations

import json
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dynolab.data.batches import draw
from dynolab.data.encode import encode_prompt
from dynolab.data.rows import PromptRow, read_rows, read_value
from dynolab.errors import DIVERGED, ConfigError
from dynolab.objectives import build_objective
from dynolab.objectives.sft import SFTExtendedConfig
from dynolab.results.arms import Divergence
from dynolab.results.judges import Judgement, PolicyAnswer
from dynolab.results.study import TrainingSummary
from dynolab.rollouts.decoding import ModelGenerator
from dynolab.rollouts.rewards import ALLOWED, Rewards
from dynolab.training.config import GroupTrainConfig, TrainConfig
from dynolab.training.record import StepRecord
from flows.mitigation import MitigationParameters, mitigation_steps
from flows.parameters import load_parameters, validated
from flows.reproduce import ReproduceParameters, reproduce_steps
from models.language import load_language_model, load_tokenizer
from tasks.runtime.pipeline import plan
from tasks.runtime.work import StageResult
from tests.flows.analysed import Analysed
from tests.flows.lab import ROOT

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


@pytest.fixture(scope="module", autouse=True)
def allowed() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ALLOWED, "tests.training.rewards")
        yield


def parameters(**changes: Any) -> MitigationParameters:
    return validated(MitigationParameters, SMALL | changes)


def run_all(analysed: Analysed, steps: Any) -> dict[str, StageResult]:
    found: dict[str, StageResult] = {}
    for step in steps:
        found[step.name] = analysed.run(step.stage, step.config, step.name, **step.sources(found))
    return found


@pytest.fixture(scope="module")
def results(analysed: Analysed) -> dict[str, StageResult]:
    """Every stage's result, by step."""
    return run_all(analysed, mitigation_steps(parameters()))


def test_arms_share_their_start_and_nothing_is_computed_twice(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    steps = mitigation_steps(parameters())
    assert {one.state for one in plan(steps, analysed.platform)} == {"cached"}
    reads = {step.name: dict(step.inputs) for step in steps}
    assert reads["dpo-1"] == {"data": "data-1", "model": "sft-1"}
    assert reads["extended-1"] == {"data": "data-1", "model": "sft-extended-1"}
    assert reads["extended-half-1"] == {"data": "data-1", "model": "sft-extended-half-1"}
    assert reads["resampled-1"] == {"data": "sampled-sft-1", "model": "sft-1"}
    own = {"data": "data-1", "prompts": "prompts-1", "model": "sft-1"}
    assert reads["on-policy-1"] == reads["on-policy-ipo-1"] == own
    assert reads["filter-1"] == {"data": "filter-1-filter", "model": "sft-1"}
    reproduction = reproduce_steps(validated(ReproduceParameters, SHARED))
    known = {one.step for one in plan(reproduction, analysed.platform) if one.state == "cached"}
    assert {
        "sft-0",
        "sft-extended-1",
        "sft-extended-half-0",
        "dpo-0",
        "extended-1",
        "resampled-0",
        "on-policy-0",
        "on-policy-ipo-1",
        "dpo-1-said",
    } <= known


def test_an_arm_that_diverges_is_a_result_and_the_others_go_on(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    wild = analysed.folder(results["wild-0"])
    found = read_value(wild / "divergence.json", Divergence)
    assert "diverged on the batch" in found.reason and found.step in (0, 1, 2)
    assert not (wild / "model").exists()
    assert results["wild-0"].metrics["diverged"] == 1.0
    assert list(analysed.platform.settings.home.glob(f"store/stages/arm/*/logs/*/{DIVERGED}"))
    assert not (analysed.folder(results["wild-0-said"]) / "answers.jsonl").read_text()
    judged = read_rows(analysed.folder(results["judge-0"]) / "judgements.jsonl", Judgement)
    assert {one.a for one in judged} == set(ARMS) - {"dpo", "wild"}
    summary = json.loads((analysed.folder(results["mitigation-page"]) / "summary.json").read_text())
    assert "diverged" in summary["ends"]["wild"]
    assert summary["metrics"]["wild/diverged"] == 2.0
    assert "dpo/train/gap" in summary["metrics"] and "wild/train/gap" not in summary["metrics"]


def test_the_alarm_ends_an_arm_early(analysed: Analysed, results: dict[str, StageResult]) -> None:
    summary = read_value(analysed.folder(results["alarm-0"]) / "summary.json", TrainingSummary)
    assert summary.alarm is None or summary.steps == summary.alarm.step < 2


def test_filtered_pairs_are_not_trained_on(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    kept = (analysed.folder(results["filter-0-filter"]) / "train.jsonl").read_text().splitlines()
    assert len(kept) == 6


def test_answers_are_drawn_alike_and_judged_prompt_by_prompt(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    answers = {
        arm: list(
            read_rows(analysed.folder(results[f"{arm}-0-said"]) / "answers.jsonl", PolicyAnswer)
        )
        for arm in ("dpo", "extended")
    }
    assert [one.id for one in answers["dpo"]] == [one.id for one in answers["extended"]]
    assert len(answers["dpo"]) == 2 * 2 * 3
    assert all(one.truth for one in answers["dpo"])
    figures = json.loads((analysed.folder(results["dpo-0-said"]) / "figures.json").read_text())
    assert figures["heldout/entropy"]["n"] == 3
    page = results["mitigation-page"].metrics
    assert 0 <= page["extended/heldout/won"] <= 1
    assert "dpo/heldout/won" not in page


def test_on_policy_arms_learn_from_ranked_answers_of_the_model_as_it_is(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    recorded = SHARED["training"] | {"steps": 3, "record_steps": [0, 1, 2]}
    arms = {"on-policy": ARMS["on-policy"]}
    steps = mitigation_steps(parameters(seeds=[0], arms=arms, training=recorded))
    training = next(step.config for step in steps if step.name == "on-policy-0")
    assert isinstance(training, GroupTrainConfig) and training.completions == 2
    trained = analysed.folder(run_all(analysed, steps)["on-policy-0"])
    prompts = list(read_rows(analysed.folder(results["prompts-0"]) / "train.jsonl", PromptRow))
    model = load_language_model(trained / "model")
    tokenizer, rewards = load_tokenizer(trained / "model"), Rewards(training.rewards)
    generator = ModelGenerator(model, tokenizer, 64)
    seen = set()
    for step in training.record_steps:
        record = StepRecord.load(trained / "forces" / f"step-{step:08d}")
        model.load_state_dict(record.before, strict=False)
        rows = [prompts[row] for row in draw(step, training.batch_size, len(prompts), 0)]
        asked = [encode_prompt(tokenizer, row.prompt) for row in rows]
        drawn = generator.generate(asked, training.sampling, samples=2, step=step)
        expected = {}
        for row, both in zip(rows, drawn, strict=True):
            worth = rewards(row.prompt, [one.text for one in both], row)
            if worth[0] != worth[1]:
                worse, better = (both[at].encoded for at in sorted((0, 1), key=worth.__getitem__))
                expected[row.id] = {"chosen": better, "rejected": worse}
        assert {pair.id: pair.named() for pair in record.examples} == expected
        seen.update(expected)
    assert seen


def test_a_model_can_judge_where_nobody_knows_what_is_right(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    arms = {label: ARMS[label] for label in ("dpo", "extended")}
    steps = mitigation_steps(parameters(judge={"name": "log_prob"}, seeds=[0], arms=arms))
    (judge,) = [step for step in steps if step.name == "judge-0"]
    assert judge.inputs["reference"] == "base-0"
    found = run_all(analysed, steps)
    assert 0 <= found["mitigation-page"].metrics["extended/heldout/won"] <= 1
    assert found["judge-0"].metrics["judge/failed"] == 0


def test_the_reproduction_measures_every_finding_of_the_world(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    found = run_all(analysed, reproduce_steps(validated(ReproduceParameters, SHARED)))
    folder = analysed.folder(found["reproduction-page"])
    summary = json.loads((folder / "summary.json").read_text())
    assert "not measured" not in {one["outcome"] for one in summary["verdicts"]}
    assert (folder / "reproduction.html").exists()
    assert found["reproduction-page"].metrics["sft/chosen"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1, 1]}, "seeds = [1, 1]: name every seed once"),
        ({"baseline": "grpo"}, "baseline = 'grpo': name an arm: dpo, extended"),
        ({"arms": {"sft-2": {}}}, "arms = 'sft-2': a shared stage has this name"),
        (
            {"arms": {"a": {"pairs": "on_policy", "filter": {"by": "ches", "drop": 0.5}}}},
            "arms.a = 'ches': ranks the data's pairs, and with pairs: on_policy others",
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
            "arms.on-policy.pairs = 'on_policy': on_policy.rewards know the built-in world alone",
        ),
        (
            {"sft": {"objective": {"name": "sft_extended"}}},
            "sft.objective = 'sft_extended': the training before is on chosen answers",
        ),
        (
            {"sft": {"engine": PLAIN, "batch_size": 5}},
            "sft.batch_size = 5: extended SFT takes half as many pairs, with two answers each: "
            "set a multiple of 2",
        ),
        (
            {"arms": {"a": {"objective": {"name": "sft"}}}},
            "arms.a = 'sft': compares no answers; choose one of dpo",
        ),
        (
            {"training": {"objective": {"name": "dpo"}, "probe_every": 1}},
            "training.objective = 'dpo': arms have objectives of their own",
        ),
        ({"training": {"engine": PLAIN}}, "training.probe_every = 0: arms are compared by probes"),
        (
            {"data": {"source": "file", "path": "x.jsonl"}, "base": {"source": "x"}},
            "judge = 'exact': knows the built-in world alone",
        ),
        ({"data": {"source": "file", "path": "x.jsonl"}}, "base.source = 'builtin'"),
        ({"arms": {}}, "arms = "),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        mitigation_steps(parameters(**changes))
    assert message in str(refused.value)


def weights_of_chosen(config: TrainConfig, rows: int) -> dict[int, Fraction]:
    """By training row what its chosen answer weighs in all steps together, in 1/batch_size."""
    seen: dict[int, Fraction] = defaultdict(Fraction)
    sides = len(build_objective(config.objective).sides)
    for step in range(config.steps):
        for row in draw(step, config.batch_size, rows, config.seed):
            seen[row] += Fraction(1, config.batch_size * sides)
    return seen


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
    known = {step.name: step.config for step in mitigation_steps(parameters(sft=sft, arms=arms))}
    plain, both, half = (known[name] for name in ("sft-0", "sft-extended-0", "sft-extended-half-0"))
    assert both.objective == half.objective == SFTExtendedConfig()
    assert weights_of_chosen(both, 12) == weights_of_chosen(plain, 12)
    assert (
        sum(weights_of_chosen(half, 12).values()) == sum(weights_of_chosen(plain, 12).values()) / 2
    )
    assert (both.steps, both.batch_size, both.micro_examples) == (18, 4, 2)
    assert both.accumulation == plain.accumulation
    assert (both.probe_every, both.warmup_steps, both.optimizer) == (6, 2, plain.optimizer)


def test_a_reproduction_without_sft_probes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sft\.probe_every = 0"):
        validated(ReproduceParameters, SHARED | {"sft": {"engine": PLAIN, "batch_size": 4}})


def test_the_harmless_domain_is_a_plan() -> None:
    known = load_parameters(
        MitigationParameters, ROOT / "deploy" / "studies" / "mitigation_harmless.yaml"
    )
    assert known.data_of(2).world.domain == "harmless" and known.data_of(2).world.seed == 2
    assert mitigation_steps(known)[-1].name == "mitigation-page"


@pytest.mark.parametrize("name", ["builtin", "tinystories"])
def test_study_files_are_plans(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYNOLAB_TEST_DATA", str(tmp_path))
    for kind, steps, file in (
        (MitigationParameters, mitigation_steps, f"mitigation_{name}.yaml"),
        (ReproduceParameters, reproduce_steps, f"reproduce_{name}.yaml"),
    ):
        known: Any = load_parameters(kind, ROOT / "deploy" / "studies" / file)
        names = [step.name for step in steps(known)]
        assert len(names) == len(set(names))
        assert len(known.seeds) >= 3
