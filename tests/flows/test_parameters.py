"""Settings of study files and forms: merged into their defaults, typed, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.utilities.schema_tools.validation import ValidationError, validate

from dynolab.errors import ConfigError
from flows.audit import AuditParameters
from flows.deployment.checks import refusals
from flows.deployment.deployments import PARAMETER, Deployment, deployments
from flows.deployment.forms import FilledForm
from flows.grpo import GrpoParameters
from flows.judge import JudgeParameters
from flows.mitigation import ARMS, MitigationParameters
from flows.parameters.parse import STUDIES, load_parameters, parse_parameters
from flows.registry import FLOWS, load_flow
from flows.study.parameters import StudyParameters
from flows.sweep.parameters import SweepParameters
from tasks.runtime.servers.run_names import run_name


def study(text: str = "", *changes: str, folder: Path | None = None) -> StudyParameters:
    return parse_parameters(StudyParameters, text, "text", changes, folder=folder)


@pytest.mark.parametrize(
    ("text", "changes"),
    [("", ["preference.objective.beta=0.2"]), ("preference: {objective: {beta: 0.2}}", [])],
)
def test_a_setting_changes_only_what_it_names(text: str, changes: list[str]) -> None:
    changed, default = study(text, *changes), StudyParameters()
    assert changed.preference.objective.model_dump() == {
        **default.preference.objective.model_dump(),
        "beta": 0.2,
    }
    assert changed.sft == default.sft


def test_a_shorter_training_records_its_last_step_in_place_of_those_behind_it() -> None:
    text = "sft: {record_steps: [1, 8, 9], steps: 10}"
    assert study(text, "sft.steps=5").sft.record_steps == (1, 4)
    assert study(text, "preference.steps=5").sft.record_steps == (1, 8, 9)
    with pytest.raises(ConfigError, match="must lie in"):
        study(text, "sft.steps=5", "sft.record_steps=[7]")


def test_one_of_the_default_arms_is_changed_and_the_others_stay() -> None:
    changed = load_parameters(MitigationParameters, None, ["arms.dose-03.objective.beta=0.3"])
    objective = changed.arms["dose-03"].objective.model_dump()
    assert (objective["beta"], objective["negative_dose"]) == (0.3, 0.3)
    assert {**changed.arms, "dose-03": ARMS["dose-03"]} == ARMS


def test_arms_of_a_file_replace_the_default_ones() -> None:
    text = "arms: {mine: {objective: {name: ipo}}}\ntraining: {steps: 5}"
    changed = parse_parameters(MitigationParameters, text, "text")
    assert changed.arms.keys() == {"mine"}
    assert (changed.training.steps, changed.training.probe_every) == (5, 20)


def test_an_objective_without_a_name_and_a_default_is_refused_with_the_remedy() -> None:
    text = "judges: {mine: {rewards: []}}\npolicies: {a: {model: a/b}, b: {model: a/b}}"
    with pytest.raises(ConfigError, match=r"judges.mine.name = None: say which it is with name"):
        parse_parameters(JudgeParameters, text, "text")


def test_paths_of_a_file_start_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "models" / "mine").mkdir(parents=True)
    file = tmp_path / "study.yaml"
    file.write_text(
        "data: {source: file, path: pairs.jsonl, chat_model: ./template}\n"
        "base: {source: models/mine}\n"
        "comparisons: {mitigation: ../remedies.yaml}\n"
    )
    found = load_parameters(StudyParameters, file)
    assert found.data.path == str(tmp_path / "pairs.jsonl")
    assert found.data.chat_model == str(tmp_path / "template")
    assert found.base.source == str(tmp_path / "models" / "mine")
    assert found.comparisons.mitigation == str(tmp_path.parent / "remedies.yaml")


def test_a_folder_in_a_variable_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYNOLAB_DATA", "/data")
    text = "data: {source: file, path: '${DYNOLAB_DATA}/a.jsonl'}\nbase: {source: owner/model}"
    assert study(text, folder=tmp_path).data.path == "/data/a.jsonl"


def test_paths_of_named_models_start_from_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    text = "model: {model: mine}\nstudy: study.yaml"
    found = parse_parameters(AuditParameters, text, "text", folder=tmp_path)
    assert found.model.model == str(tmp_path / "mine")
    assert found.study == str(tmp_path / "study.yaml")


def test_built_in_studies_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_parameters(StudyParameters, Path("builtin.yaml")).name == "builtin"
    sweep = load_parameters(SweepParameters, Path("sweep_beta.yaml"))
    assert sweep.study_path == STUDIES / "builtin.yaml"
    (tmp_path / "builtin.yaml").write_text("name: mine")
    assert load_parameters(StudyParameters, Path("builtin.yaml")).name == "mine"
    mine = FilledForm(study_file="builtin.yaml").parameters(StudyParameters)
    assert mine.comparisons.mitigation == str(STUDIES / "mitigation_builtin.yaml")


LIMIT = 524_288  # bytes of parameters that Prefect's server takes
KNOWN = deployments()
BUILTIN = "builtin.yaml"
StudyForm, PreferenceForm, GrpoForm = (
    KNOWN[name].form_model for name in ("study", "preference", "grpo")
)


@pytest.fixture(params=list(KNOWN.values()), ids=list(KNOWN))
def deployment(request: pytest.FixtureRequest) -> Deployment:
    return request.param


def test_every_flow_of_the_registry_has_a_deployment() -> None:
    assert {deployment.flow.name for deployment in KNOWN.values()} == set(FLOWS)


def test_a_form_is_described_ordered_and_typed(deployment: Deployment) -> None:
    """Each field has one type; Prefect's server takes empty fields and refuses wrong types."""
    schema = deployment.schema
    fields = schema["definitions"][deployment.form_model.__name__]["properties"]
    for name, field in fields.items():
        assert field["type"] in ("string", "integer", "number", "boolean", "array"), name
        assert field["description"], name
    assert sorted(field["position"] for field in fields.values()) == list(range(len(fields)))
    assert len(json.dumps(schema)) < LIMIT
    empty = {name for name, field in fields.items() if not {"default", "enum"} & set(field)}
    given: dict[str, dict[str, Any]] = {PARAMETER: dict.fromkeys(empty)}
    validate(given, schema, raise_on_error=True)
    given[PARAMETER]["fresh"] = "perhaps"
    with pytest.raises(ValidationError, match="fresh"):
        validate(given, schema, raise_on_error=True)


def test_an_empty_form_is_the_study_file(deployment: Deployment) -> None:
    file = STUDIES / deployment.first_file
    assert deployment.first_file in deployment.description
    assert deployment.parameters(deployment.form_model()) == load_parameters(
        deployment.flow.parameters, file, deployment.form.fixed
    )


def test_fields_change_the_files_settings() -> None:
    form = StudyForm(
        study_file=BUILTIN,
        name="mine",
        project="βeta 🙂 “tried”: #1",
        seed=7,
        beta=0.3,
        steps=5,
        learning_rate=1e-5,
        contrasts=[],
        other_settings=["sft.steps=11", "sft.record_steps=[0]", "preference.record_steps=[0]"],
    )
    known = form.parameters(StudyParameters)
    assert (known.name, known.seed, known.sft.steps, known.contrasts) == ("mine", 7, 11, ())
    assert known.project == "βeta 🙂 “tried”: #1"
    assert (known.preference.steps, known.preference.optimizer.learning_rate) == (5, 1e-5)
    assert known.preference.objective.model_dump() == {
        **load_parameters(StudyParameters, STUDIES / BUILTIN).preference.objective.model_dump(),
        "beta": 0.3,
    }


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("sweep", {"beta": "low: 1, high: 10"}),
        ("sweep", {"steps": "low: 1, high: 10, integer: true"}),
        ("sweep", {"other_values": ["sft.steps=20, 40"]}),
        ("sweep", {"shared_settings": ["preference.steps=60"], "other_settings": ["seed=1"]}),
        ("study", {"other_settings": ["sft.clip_norm=5"]}),
    ],
)
def test_the_examples_of_a_form_are_taken(name: str, fields: dict[str, Any]) -> None:
    properties = KNOWN[name].schema["definitions"][f"{name.title()}Form"]["properties"]
    for field, value in fields.items():
        example = value if isinstance(value, str) else value[0]
        assert example in properties[field]["description"]
    assert refusals(KNOWN[name], fields) == []


BAD_FORMS: list[tuple[str, dict[str, Any], str]] = [
    ("sweep/a-sweep", {"beta": "0.05; half"}, "preference.objective.beta = '0.05; half'"),
    ("sweep/a-sweep", {"beta": "0.1, -1"}, "preference.objective.beta = -1"),
    ("sweep/a-sweep", {"beta": "low: 2, high: 1"}, "low must be below high"),
    ("sweep/a-sweep", {"steps": "low: 1, high: 10"}, "for whole numbers add integer: true"),
    ("sweep/a-sweep", {"other_values": ["sft.step=1, 2"]}, "sft.step = 1: there is no such"),
    ("sweep/a-sweep", {"shared_settings": ["preference.steps"]}, "write it as key=value"),
    ("sweep/a-sweep", {"metric": "probe/chosen/loss"}, "metric = 'probe/chosen/loss'"),
    ("sweep/a-sweep", {"stage": "tuning"}, "stage = 'tuning': choose one of"),
    ("sweep/a-sweep", {"trials": 0}, "less than the minimum"),
    ("study/a-study", {"study_file": "../../pyproject.toml"}, "is outside deploy/studies"),
    ("study/a-study", {"study_text": "nothing: there"}, "nothing = 'there': there is no such"),
    ("study/a-study", {"steps": "many"}, "'many'"),
    ("study/a-study", {"objective": "ipo", "margin": 1.0}, "preference.objective.margin = 1.0"),
    ("study/a-study", {"other_settings": ["sft.steps=-5"]}, "sft.steps = -5"),
]
"""Deployment, fields of its form that cannot work, and what is said of them."""


@pytest.mark.parametrize(("name", "fields", "said"), BAD_FORMS)
def test_a_form_that_no_run_could_begin_with_is_refused(
    name: str, fields: dict[str, Any], said: str
) -> None:
    asked = KNOWN[name.partition("/")[0]]
    messages = [message for _, message in refusals(asked, fields)]
    messages += map(str, validate({PARAMETER: fields}, asked.schema))
    assert any(said in message for message in messages), messages


def test_a_sweeps_form_has_fields_for_the_values_to_try() -> None:
    sweep = KNOWN["sweep"]
    form = sweep.form_model(
        beta="0.1, 2", learning_rate="low: 1e-5, high: 1e-3", other_values=["sft.steps=20, 1e2"]
    )
    drawn = sweep.parameters(form)
    assert (drawn.sampler, drawn.trials) == ("random", 10)
    assert drawn.model_dump(exclude_defaults=True)["space"] == {
        "preference.objective.beta": {"values": (0.1, 2)},
        "preference.optimizer.learning_rate": {"low": 1e-5, "high": 1e-3},
        "sft.steps": {"values": (20, 100.0)},
    }


def test_settings_that_all_trials_of_a_form_share_stand_beside_the_files() -> None:
    sweep = KNOWN["sweep"]
    form = sweep.form_model(beta="0.1, 2", shared_settings=["preference.steps=7"], prune="asha")
    shared = sweep.parameters(form)
    file = sweep.parameters(sweep.form_model(beta="0.1, 2"))
    assert shared.settings == (*file.settings, "preference.steps=7")
    assert file.settings and shared.prune.rule == "asha"


def test_a_run_that_cannot_work_ends_with_one_message() -> None:
    for fields, said in (
        ({"other_settings": ["preference.steps=-5"]}, "preference.steps = -5: "),
        ({"strides": 5}, "1 validation error for PreferenceForm\nstrides"),
    ):
        state = KNOWN["preference"].run(fields)
        assert state.is_failed() and state.message.startswith(said)


@pytest.mark.parametrize(
    ("typed", "filled", "name"),
    [
        ("my try", {"name": "gentle"}, "my try"),
        ("Tasty-Sphynx", {"name": "gentle"}, "gentle"),
        ("omicron6-deneb", {"study_file": "sweep_beta.yaml"}, "sweep_beta (omicron6-deneb)"),
        ("fresh-goose", {}, "sweep (fresh-goose)"),
        ("fresh-goose", "theirs", "fresh-goose"),
    ],
)
def test_a_run_has_the_name_that_was_typed(typed: str, filled: object, name: str) -> None:
    assert run_name(typed, filled, "sweep") == name


def test_an_objective_starts_from_its_defaults() -> None:
    form = PreferenceForm(study_file=BUILTIN, objective="simpo", margin=0.5)
    objective = form.parameters(StudyParameters).preference.objective
    assert objective.model_dump() == {"name": "simpo", "beta": 2.0, "margin": 0.5}
    form = GrpoForm(study_file="grpo_builtin.yaml", objective="simko", advantage_rule="nthr")
    arms = form.parameters(GrpoParameters).arms
    assert arms["chosen"].name == "simko" and arms["grpo"].name == "grpo"


def test_a_study_can_be_written_into_the_form() -> None:
    form = StudyForm(study_file=BUILTIN, study_text="name: written\nseed: 3\n", seed=4)
    known = form.parameters(StudyParameters)
    assert (known.name, known.seed) == ("written", 4)


def test_a_deployed_flow_is_imported_by_its_name() -> None:
    for name, deployment in KNOWN.items():
        flow: Flow[..., Any] = load_flow_from_entrypoint(f"flows.deploy.{name}")
        assert flow.name == deployment.flow.name
        filled = {PARAMETER: {"fresh": True}}
        assert flow.validate_parameters(filled) == filled
        assert deployment.form_model(**filled[PARAMETER]).study_file == deployment.first_file
    offered = [form for flow in map(load_flow, FLOWS) for form in flow.forms or [flow.name]]
    assert offered == list(KNOWN)
