"""What a study's page offers: the comparison of remedies, and the map of a pair."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path

import pytest
import yaml

from dynolab.errors import ConfigError
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.grpo import GRPOConfig
from dynolab.report.ledger.fallen import fallen_accounts, strongest_pullers
from dynolab.training.alarm import AlarmConfig
from flows.forces import ForcesParameters
from flows.mitigation import ARMS, MitigationParameters, mitigation_steps, remedies_file
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.arm import ArmConfig, OnPolicyConfig, study_command
from tasks.audit import FILTER, FilterConfig
from tasks.report import map_command, with_named_arm
from tasks.runtime.work import StageResult
from tests.report.ledgers import write_ledger

BUILTIN, FORCES = Path("builtin.yaml"), Path("forces_builtin.yaml")


def study(*changes: str) -> StudyParameters:
    return load_parameters(StudyParameters, BUILTIN, changes)


def offered(parameters: StudyParameters, folder: Path) -> MitigationParameters:
    """The file as the command reads it."""
    file = folder / "remedies.yaml"
    file.write_text(remedies_file(parameters))
    return load_parameters(MitigationParameters, file, [])


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("sft=null",),
        ("preference.objective={name: ipo}",),
        ("preference.objective.beta=0.3", "preference.probe_every=0", "seed=4"),
        ("preference.objective={name: dpo, designed_dose: {sample: 8}}",),
        ("preference.objective={name: dpo, negative_dose: 0.3}",),
        ("audit=null", "ledger=null"),
    ],
)
def test_the_baseline_is_the_studys_own_training(changes: tuple[str, ...], tmp_path: Path) -> None:
    own = study(*changes)
    comparison = offered(own, tmp_path)
    assert comparison.seeds == (own.seed, own.seed + 1, own.seed + 2)
    assert next(iter(comparison.arms)) == comparison.baseline_label == "as-it-was"
    arm = comparison.arms["as-it-was"]
    trained = arm.training(comparison.training, comparison.on_policy, own.preference.seed)
    told = {"record_steps", "checkpoint_every", "ledger", "alarm", "best", "probe_every"}
    assert trained.model_dump(exclude=told) == own.preference.model_dump(exclude=told)
    assert arm.start == own.start
    arms = comparison.arms
    own_objective = [label for label in arms if arms[label].objective == arm.objective]
    assert own_objective == ["as-it-was", "extended"][: 1 + (own.sft is not None)]


@pytest.mark.parametrize("changes", [(), ("probe_set={kinds: [chosen, rejected]}",)])
def test_the_first_seed_starts_from_the_studys_results(
    changes: tuple[str, ...], tmp_path: Path
) -> None:
    """What SFT reads, and all that came before it, is the study's."""
    own = resolved(study(*changes))
    steps = {step.name: step for step in mitigation_steps(offered(own, tmp_path))}
    before = [step for step in study_steps(own) if step.name in ("rows", "data", "base", "sft")]
    assert len(before) == 3 + (own.probe_set is not None)
    for step in before:
        first = steps[f"{step.name}-0"]
        assert (first.stage, first.config) == (step.stage, step.config)
        assert first.inputs == {name: f"{read}-0" for name, read in step.inputs.items()}


def test_the_studys_account_adds_an_arm_without_the_pairs_that_it_names(tmp_path: Path) -> None:
    ledger = write_ledger(tmp_path)
    of_rows = yaml.safe_load(remedies_file(study())) | {"data": {"source": "file", "path": "pairs"}}
    arms = of_rows.pop("arms")
    text = with_named_arm(yaml.safe_dump(of_rows) + yaml.safe_dump({"arms": arms}), ledger)
    assert "&" not in text and "*" not in text
    settings = yaml.safe_load(text)
    baseline = ArmConfig.model_validate(settings["arms"]["as-it-was"])
    named, control, similar = (
        ArmConfig.model_validate(settings["arms"][f"without-{what}"])
        for what in ("named", "random", "similar")
    )
    assert named.objective == control.objective == similar.objective == baseline.objective
    assert named.filter and control.filter and similar.filter
    assert list(named.filter.pairs) == strongest_pullers(ledger) != []
    assert control.filter.random == len(similar.filter.pairs) == len(named.filter.pairs)
    fallen = [account.row.name for account in fallen_accounts(ledger)]
    assert settings["follow"] and set(settings["follow"]) <= set(fallen)
    assert with_named_arm(remedies_file(study()), None) == remedies_file(study())


def test_pairs_of_one_world_are_not_left_out_of_another(tmp_path: Path) -> None:
    """Every seed of a comparison has a built-in world of its own, whose ids are other pairs."""
    text = with_named_arm(remedies_file(study()), write_ledger(tmp_path))
    file = tmp_path / "remedies.yaml"
    file.write_text(text)
    comparison = load_parameters(MitigationParameters, file, [])
    assert not [label for label in comparison.arms if label.startswith("without")]
    assert comparison.follow


def test_random_pairs_are_drawn_anew_for_every_seed() -> None:
    control = ArmConfig(filter=FilterConfig(random=3))
    comparison = MitigationParameters(arms={"as-it-was": ArmConfig(), "control": control})
    drawn = [
        step.config.seed
        for step in mitigation_steps(comparison)
        if step.name.startswith("control") and step.stage is FILTER
    ]
    assert drawn == list(comparison.seeds)


OTHER_ARMS = {
    "slower": ArmConfig(learning_rate=1e-3, warmup_steps=2),
    "from-base": ArmConfig(start="base", alarm=AlarmConfig(rise=1.5)),
    "weighed": ArmConfig(filter=FilterConfig(by="on_all", weigh=True)),
    "without": ArmConfig(filter=FilterConfig(pairs=("train-0001",))),
    "control": ArmConfig(filter=FilterConfig(random=3)),
}


@pytest.mark.parametrize("label", [*ARMS, *OTHER_ARMS])
def test_a_printed_command_trains_as_its_run_did_or_none_is_printed(label: str) -> None:
    arm = (ARMS | OTHER_ARMS)[label]
    before = study()
    command = study_command(label, arm.facts, before.preference.steps)
    if arm.start.startswith("extended") or arm.pairs != "given":
        assert command == ""
        return
    words = shlex.split(command)
    options = [word for flag, word in itertools.pairwise(words) if flag == "--set"]
    after = study(*options)
    assert (after.sft is None) == (arm.start == "base")
    assert after.preference_filter == arm.filter
    trained = arm.training(before.preference, OnPolicyConfig(), before.preference.seed)
    assert after.preference == trained


def test_named_pairs_are_left_out_without_an_audit() -> None:
    own = study("audit=null", 'preference_filter={"pairs": ["a"]}')
    steps = {step.name: step for step in study_steps(own)}
    assert "audit" not in steps and steps["filter"].inputs == {"data": "data"}
    assert steps["preference"].inputs["data"] == "filter"
    with pytest.raises(ConfigError, match="name the pairs"):
        study("audit=null", "preference_filter={by: on_all}")


def test_a_training_that_cannot_be_compared_has_none() -> None:
    assert remedies_file(study("preference.objective={name: sft_extended}")) == ""


def result(stage: str, digit: str) -> StageResult:
    key = digit * 64
    return StageResult(
        stage=stage,
        key=key,
        address=f"stages/{stage}/{key}",
        digest=key,
        metrics={},
        mlflow_run_id=None,
        cached=True,
    )


INPUTS = {
    name: result(name, digit) for name, digit in (("data", "a"), ("sft", "b"), ("preference", "c"))
}


def test_the_reports_command_is_an_analysis_of_that_study() -> None:
    """As `dynolab forces` reads it: over its own example's settings."""
    words = shlex.split(map_command(DPOConfig(beta=0.3), INPUTS, 2e-4))
    assert words[:2] == ["dynolab", "forces"]
    assert set(words[2::2]) == {"--set"}
    changes = [*words[3::2], 'analysis.pair_ids=["train-0007"]']
    found = load_parameters(ForcesParameters, FORCES, changes)
    assert found.study is None
    assert found.data_result == "data/" + "a" * 12
    assert {label: checkpoint.result for label, checkpoint in found.checkpoints.items()} == {
        "before": "sft/" + "b" * 12,
        "after": "preference/" + "c" * 12,
    }
    assert found.reference == "before"
    assert found.analysis.objective == DPOConfig(beta=0.3)
    assert found.analysis.pair_ids == ("train-0007",)
    assert found.analysis.learning_rate == 2e-4


def test_a_training_on_groups_has_no_pair_to_map() -> None:
    assert map_command(GRPOConfig(), INPUTS) == ""
    assert map_command(None, INPUTS) == ""
