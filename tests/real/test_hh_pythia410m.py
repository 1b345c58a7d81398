"""The study file for a GPU machine: that it parses and pins what it names, without the network."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi

from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps

FILE = Path(__file__).parents[2] / "deploy/studies/hh_pythia410m.yaml"
MODEL_COMMIT, DATA_COMMIT = "a" * 40, "b" * 40


def test_it_holds_the_papers_settings_and_pins_its_hub_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []

    def hub(commit: str):
        def info(api: HfApi, name: str, *, revision: str) -> SimpleNamespace:
            asked.append((name, revision))
            return SimpleNamespace(sha=commit)

        return info

    monkeypatch.setattr(HfApi, "model_info", hub(MODEL_COMMIT))
    monkeypatch.setattr(HfApi, "dataset_info", hub(DATA_COMMIT))
    study = resolved(load_parameters(StudyParameters, FILE))

    assert set(asked) == {
        ("Anthropic/hh-rlhf", "main"),
        ("EleutherAI/pythia-410m-deduped", "main"),
    }
    data = (study.data.revision, study.data.hub_folder, study.data.rows)
    assert data == (DATA_COMMIT, "helpful-base", 5000)
    assert study.base.revision == MODEL_COMMIT
    for training in (study.sft, study.preference):
        assert (training.optimizer.name, training.optimizer.learning_rate) == ("rmsprop", 5e-7)
        assert (training.warmup_steps, training.batch_size, training.clip_norm) == (150, 4, 10)
        assert training.engine.dtype == "fp32"
    assert study.preference.objective.name == "dpo" and study.preference.objective.beta == 0.1
    names = [step.name for step in study_steps(study)]
    assert names[:5] == ["data", "base", "sft", "audit", "preference"] and names[-1] == "report"
