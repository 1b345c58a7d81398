"""Forms of deployments: in sections, stable, the same settings as a study file's; schedules."""

from __future__ import annotations

import json
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import pytest
from prefect.utilities.schema_tools.validation import ValidationError, validate
from pydantic import BaseModel

from dynolab.errors import ConfigError
from flows.deployments import (
    PARAMETER,
    SCHEDULES,
    Deployment,
    deployment_specs,
    deployments,
    read_schedules,
)
from flows.form import SECTIONS, STUDIES, FilledForm
from flows.grpo import GrpoParameters
from flows.parameters import load_parameters
from flows.register import FILE, prefect_yaml
from flows.registry import FLOWS
from flows.study.parameters import StudyParameters
from flows.sweep.trials import DEPLOYMENT as TRIAL

SNAPSHOT = Path(__file__).with_name("forms.json")
LIMIT = 524_288  # bytes of parameters that Prefect's server takes
KNOWN = deployments()
BUILTIN = "builtin.yaml"
StudyForm, PreferenceForm, GrpoForm = (
    KNOWN[name].form_model for name in ("study", "preference", "grpo")
)


@pytest.fixture(params=list(KNOWN.values()), ids=list(KNOWN))
def deployment(request: pytest.FixtureRequest) -> Deployment:
    return request.param


def shown(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """What stands in the form: fields and sections."""
    return dict(deployment.schema["definitions"][deployment.form_model.__name__]["properties"])


def fields_of(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """Every field, whether it stands in a section or beside them."""
    fields: dict[str, dict[str, Any]] = {}
    for name, part in shown(deployment).items():
        fields |= part["properties"] if name in SECTIONS else {name: part}
    return fields


def drawn(fields: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Each field as a person meets it: its type, or what there is to choose from."""
    return {
        name: drawn(field["properties"])
        if name in SECTIONS
        else " | ".join(field["enum"])
        if "enum" in field and name != "study_file"
        else field["type"]
        for name, field in sorted(fields.items(), key=lambda item: item[1]["position"])
    }


def test_forms_stay_as_they_are() -> None:
    """After a change that is meant: python -m tests.flows.test_forms."""
    known = json.loads(SNAPSHOT.read_text())
    assert {
        deployment.form_model.__name__: drawn(shown(deployment)) for deployment in KNOWN.values()
    } == known


def test_every_flow_of_the_registry_has_a_deployment() -> None:
    assert {deployment.flow.name for deployment in KNOWN.values()} == set(FLOWS)


def test_prefect_lists_the_study_first_and_what_nobody_starts_by_hand_last() -> None:
    listed = sorted(deployment_specs(), key=lambda spec: spec.name)
    internal = [spec for spec in listed if spec.schema is None]
    assert listed[0].flow == "study" and listed[-len(internal) :] == internal
    assert {spec.name for spec in internal} == {"~internal-reconcile", TRIAL.partition("/")[2]}


def test_a_form_is_described_ordered_and_small(deployment: Deployment) -> None:
    schema, parts = deployment.schema, shown(deployment)
    fields = fields_of(deployment)
    for name, field in fields.items():
        assert field["type"] in ("string", "integer", "number", "boolean", "array"), name
        assert not {"anyOf", "oneOf", "allOf", "$ref"} & set(field), name
        assert field["description"], name
    assert not set(SECTIONS) & set(fields)
    sections = {name: parts[name] for name in SECTIONS if name in parts}
    for name, section in sections.items():
        assert (section["title"], section["description"]) == SECTIONS[name]
        assert section["type"] == "object" and section["additionalProperties"] is False
    for group in (parts, *(section["properties"] for section in sections.values())):
        assert [part["position"] for part in group.values()] == list(range(len(group)))
    assert next(iter(parts)) == "study_file" and list(parts)[-1] == "more"
    assert fields.keys() == deployment.form_model.model_fields.keys()
    assert len(json.dumps(schema)) < LIMIT
    assert schema["definitions"].keys() == {deployment.form_model.__name__}


def test_a_form_reads_what_it_has_put_into_sections() -> None:
    form = StudyForm(study_file=BUILTIN, seed=7, beta=0.3, steps=5, project="mine", fresh=True)
    filled = form.in_sections()
    assert filled == {
        "study_file": BUILTIN,
        "seed": 7,
        "loss": {"beta": 0.3},
        "training": {"steps": 5},
        "more": {"project": "mine", "fresh": True},
    }
    assert StudyForm(**filled) == form


def test_every_field_is_a_setting_of_its_flow(deployment: Deployment) -> None:
    for name, setting in deployment.form_spec.fields.items():
        assert _settings(deployment.flow.parameters, setting.split(".")), f"{name}: {setting}"


def _settings(annotation: Any, path: list[str]) -> bool:
    """Whether a dotted path leads through models, dictionaries and choices to a setting."""
    if not path:
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(path[0])
        return field is not None and _settings(field.annotation, path[1:])
    parts = get_args(annotation)
    if getattr(annotation, "__origin__", None) is dict:
        return _settings(parts[1], path[1:])
    return any(
        _settings(part, path)
        for part in parts
        if isinstance(part, type | UnionType) or get_args(part)
    )


def test_an_empty_form_is_the_study_file(deployment: Deployment) -> None:
    file = STUDIES / deployment.first_file
    form = deployment.form_model(study_file=file.name)
    assert deployment.parameters(form) == load_parameters(
        deployment.flow.parameters, file, deployment.form_spec.fixed
    )


def test_prefects_server_takes_empty_fields_and_refuses_wrong_types(deployment: Deployment) -> None:
    schema, parts = deployment.schema, shown(deployment)
    files = parts["study_file"]["enum"]
    if files:
        given = {PARAMETER: {"study_file": files[0], **_empty(parts)}}
        validate(given, schema, raise_on_error=True)
        with pytest.raises(ValidationError, match="fresh"):
            given[PARAMETER]["more"]["fresh"] = "perhaps"
            validate(given, schema, raise_on_error=True)


def _empty(fields: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the server may be sent for fields that are left empty."""
    return {
        name: _empty(field["properties"]) if name in SECTIONS else None
        for name, field in fields.items()
        if not {"default", "enum"} & set(field)
    }


def test_fields_change_the_files_settings() -> None:
    form = StudyForm(
        study_file=BUILTIN,
        name="mine",
        seed=7,
        beta=0.3,
        steps=5,
        learning_rate=1e-5,
        contrasts=[],
        other_settings=["sft.steps=11", "sft.record_steps=[0]", "preference.record_steps=[0]"],
    )
    known = form.parameters(StudyParameters)
    assert (known.name, known.seed, known.sft.steps, known.contrasts) == ("mine", 7, 11, ())
    assert (known.preference.steps, known.preference.optimizer.learning_rate) == (5, 1e-5)
    assert known.preference.objective.model_dump() == {
        **load_parameters(StudyParameters, STUDIES / BUILTIN).preference.objective.model_dump(),
        "beta": 0.3,
    }


def test_every_letter_of_a_field_arrives() -> None:
    form = StudyForm(study_file=BUILTIN, project="βeta 🙂 “tried”: #1")
    assert form.parameters(StudyParameters).project == "βeta 🙂 “tried”: #1"


def test_another_objective_starts_from_its_defaults() -> None:
    form = PreferenceForm(study_file=BUILTIN, objective="simpo", margin=0.5)
    objective = form.parameters(StudyParameters).preference.objective
    assert objective.model_dump() == {"name": "simpo", "beta": 2.0, "margin": 0.5}


def test_one_more_arm_of_a_comparison() -> None:
    form = GrpoForm(study_file="grpo_builtin.yaml", objective="simko", advantage_rule="nthr")
    arms = form.parameters(GrpoParameters).arms
    assert arms["chosen"].name == "simko" and arms["grpo"].name == "grpo"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"objective": "ipo", "label_smoothing": 0.1},
            r"label_smoothing = 0.1: ipo does not take "
            r"it; leave it empty, or choose an objective that does: dpo, robust_dpo",
        ),
        ({"margin": 1.0}, "margin = 1.0: dpo does not take it"),
        ({"beta": -1.0}, r"preference.objective.beta = -1.0: .*greater than 0"),
        ({"steps": 0}, r"preference.steps = 0: "),
        ({"study_file": "../../pyproject.toml"}, "study_file = .*: is outside deploy/studies"),
        ({"study_file": "/etc/passwd"}, "study_file = .*: is outside deploy/studies"),
        ({"study_file": "none.yaml"}, "cannot be read"),
        ({"study_text": "nothing: there"}, "nothing = 'there': there is no such setting"),
        ({"study_text": "!!python/object/apply:os.system ['true']"}, "cannot be read as YAML"),
        (
            {"study_text": "preference: {objective: {name: [dpo]}}", "beta": 1.0},
            r"preference.objective.* = ",
        ),
        ({"other_settings": ["beta"]}, "write it as key=value"),
    ],
)
def test_what_cannot_work_is_refused_with_its_field(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PreferenceForm(**{"study_file": BUILTIN, **given}).parameters(StudyParameters)


def test_a_study_can_be_written_into_the_form() -> None:
    form = StudyForm(study_file=BUILTIN, study_text="name: written\nseed: 3\n", seed=4)
    known = form.parameters(StudyParameters)
    assert (known.name, known.seed) == ("written", 4)


def test_a_deployed_flow_is_imported_by_its_name() -> None:
    from prefect.flows import Flow, load_flow_from_entrypoint

    for name, deployment in KNOWN.items():
        flow: Flow[..., Any] = load_flow_from_entrypoint(f"flows.deployments.{name}")
        assert flow.name == deployment.flow.name
        form = flow.validate_parameters({PARAMETER: {"study_file": "any.yaml"}})[PARAMETER]
        assert isinstance(form, FilledForm) and form.study_file == "any.yaml"


def test_the_built_in_schedules_can_be_read(tmp_path: Path) -> None:
    assert read_schedules(SCHEDULES, KNOWN).keys() <= KNOWN.keys()
    assert read_schedules(tmp_path / "none.yaml", KNOWN) == {}


def test_the_file_for_prefects_own_command_is_current() -> None:
    assert FILE.read_text() == prefect_yaml(deployment_specs()), "run python -m flows.register yaml"


def test_a_schedule_runs_a_form_by_the_clock(tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text("sweep: [{name: nightly, cron: 0 3 * * *, settings: {trials: 3}}]\nstudy:\n")
    schedules = read_schedules(file, KNOWN)
    assert schedules["study"] == []
    made = schedules["sweep"][0].create(KNOWN["sweep"])
    assert made.slug == "nightly" and made.parameters is not None
    assert made.parameters[PARAMETER]["study_file"] == "sweep_beta.yaml"
    assert made.parameters[PARAMETER]["trials"] == 3


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("weep: []", "schedules = 'weep': name a deployment: study, "),
        ("[1]", "must hold settings by name"),
        ("sweep: {cron: 0 3 * * *}", "sweep = "),
        ("sweep: [{timezone: UTC}]", r"sweep.0.cron = .*Field required"),
        ("sweep: [{cron: 0 3 * * *, when: now}]", "sweep.0.when = 'now': there is no such"),
        ("sweep: [{cron: at three}]", "cron = 'at three': "),
        ("sweep: [{cron: 0 3 * * *, timezone: Moon}]", "timezone = 'Moon': "),
        ("sweep: [{cron: 0 3 * * *, settings: {trials: few}}]", "trials = 'few': "),
    ],
)
def test_what_is_no_schedule_is_named(written: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "schedules.yaml"
    file.write_text(written)
    with pytest.raises(ConfigError, match=message):
        read_schedules(file, KNOWN)["sweep"][0].create(KNOWN["sweep"])


if __name__ == "__main__":
    content = {
        deployment.form_model.__name__: drawn(shown(deployment)) for deployment in KNOWN.values()
    }
    SNAPSHOT.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
