"""The study files for machines with a GPU: they parse, pin what they name, and are plans."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi

from flows.comparison import resolved_comparison
from flows.parameters import load_parameters
from flows.reproduce import ReproduceParameters, reproduce_steps
from tests.flows.lab import ROOT

MODEL_COMMIT, DATA_COMMIT = "a" * 40, "b" * 40
MODELS = {
    "reproduce_pythia410m.yaml": "EleutherAI/pythia-410m-deduped",
    "reproduce_pythia2.8b.yaml": "EleutherAI/pythia-2.8b-deduped",
    "reproduce_qwen1.8b.yaml": "Qwen/Qwen1.5-1.8B",
}


@pytest.mark.parametrize("file", MODELS)
def test_it_holds_the_papers_settings_and_pins_its_hub_names(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def hub(commit: str) -> Any:
        def info(api: HfApi, name: str, *, revision: str) -> SimpleNamespace:
            asked.append(name)
            return SimpleNamespace(sha=commit)

        return info

    monkeypatch.setattr(HfApi, "model_info", hub(MODEL_COMMIT))
    monkeypatch.setattr(HfApi, "dataset_info", hub(DATA_COMMIT))
    known = resolved_comparison(
        load_parameters(ReproduceParameters, ROOT / "deploy/studies" / file)
    )

    assert set(asked) == {"Anthropic/hh-rlhf", MODELS[file]}
    assert known.data.revision == DATA_COMMIT and known.base.revision == MODEL_COMMIT
    assert (known.data.hub_folder, known.data.rows) == ("helpful-base", 5000)
    for training in (known.sft, known.training):
        optimizer = training.optimizer
        assert (optimizer.name, optimizer.learning_rate) == ("rmsprop", 5e-7)
        assert (training.warmup_steps, training.batch_size, training.clip_norm) == (150, 4, 10)
        assert training.engine.dtype == "fp32"
    names = [step.name for step in reproduce_steps(known)]
    assert names[:4] == ["data-0", "base-0", "sft-0", "sft-extended-0"]
    assert {"from-base-0", "dpo-0", "extended-0", "resampled-0", "judge-0"} <= set(names)
    assert names[-1] == "reproduction-page"
    # Nothing here ranks the policy's own answers.
    assert not {name for name in names if name.startswith(("on-policy", "ipo", "prompts"))}
