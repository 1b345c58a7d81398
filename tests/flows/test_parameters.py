"""Settings are merged into their defaults; paths in a study file start from its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from flows.audit import AuditParameters
from flows.deploy import FilledForm
from flows.judge import JudgeParameters
from flows.mitigation import ARMS, MitigationParameters
from flows.parameters import STUDIES, load_parameters, parse_parameters
from flows.study import StudyParameters
from flows.sweep import SweepParameters


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
