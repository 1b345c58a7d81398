"""The way through all arms at toy size: it runs, and what must happen at any size does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.study.arms import ARMS, SFT, prepare, study_parameters, train_arm
from tests.study.findings import measure, summarise, table_of

TOY = (
    "data.world={entities: 12, train_pairs: 16, heldout_pairs: 8, corpus_rows: 160}",
    "base.training.steps=4",
    "sft.steps=6",
    "sft.record_steps=[]",
    "preference.steps=2",
    "preference.record_steps=[]",
    # Too little training to learn to end an answer: samples may be longer than the context.
    "preference.overlong=drop",
)


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_arms_run_and_finetuning_lifts_chosen_answers(tmp_path: Path) -> None:
    parameters = study_parameters(7, TOY)
    prepare(parameters, tmp_path)
    probes = tmp_path / "world" / "probes.jsonl"
    measured = {arm: [measure(arm, train_arm(arm, parameters, tmp_path), probes)] for arm in ARMS}
    findings = summarise(measured)
    values = {one.name: one.values[0] for group in findings.values() for one in group}
    assert values[f"{SFT}: Δ chosen"] > 0
    assert values["dpo step: 1 − R²"] < 0.01
    assert len(table_of(findings)) == len(values)


def test_seed_reaches_world_weights_and_batches() -> None:
    parameters = study_parameters(7)
    parts = (
        parameters.data.world,
        parameters.base,
        parameters.base.training,
        parameters.sft,
        parameters.preference,
    )
    assert {part.seed for part in parts} == {7}
