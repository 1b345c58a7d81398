"""On a pretrained Llama with tied embeddings: a probe set of the paper's own file and of raw HH
transcripts."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from dynolab.data.probes.kinds import KINDS
from dynolab.data.probes.overlap import TrainingTexts
from dynolab.data.sources.load import DataConfig, load_data
from dynolab.probes.making.probe_set import ProbeSetConfig, build_probe_set
from dynolab.probes.making.written import Policy
from models.language import load_language_model, load_tokenizer

pytestmark = pytest.mark.skipif(
    not os.environ.get("DYNOLAB_TEST_DATA"),
    reason="DYNOLAB_TEST_DATA names no folder with the real model and data",
)
OWN = ("chosen_initial", "chosen_selfr")


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(os.environ["DYNOLAB_TEST_DATA"])


@pytest.fixture(scope="module")
def policy(folder: Path) -> Policy:
    model = folder / "models/tinystories-656k"
    return Policy(load_language_model(model), load_tokenizer(model), "tinystories-656k")


def test_the_papers_kinds_are_taken_over_and_the_policys_made_anew(
    folder: Path, policy: Policy
) -> None:
    source = folder / "data/probes/hh_helpful_probe_train.jsonl.gz"
    data = load_data(
        DataConfig(source="file", path=str(source), format="probe_file", probe_pairs=12)
    )
    config = ProbeSetConfig(
        kinds=KINDS,
        taken=tuple(kind for kind in KINDS if kind not in OWN),
        pairs=12,
        max_new_tokens=24,
    )
    built = build_probe_set(config, data.pairs, data.heldout, extra=data.probes, policy=policy)
    assert Counter(row.kind for row in built.rows) == dict.fromkeys(KINDS, 24)
    assert built.missing == []
    stored = {(row.pair_id, row.kind): row.response for row in data.probes}
    for row in built.rows:
        assert row.response == "" or row.response[0] == " " != row.response[1]
        assert (row.response == stored[row.pair_id, row.kind]) == (row.kind not in OWN)
    assert not any("\n\nHuman:" in row.response for row in built.rows if row.kind in OWN)


def test_no_irrelevant_answer_of_raw_transcripts_stands_in_training(
    folder: Path, policy: Policy
) -> None:
    source = folder / "data/hh/harmless-base_test.jsonl.gz"
    data = load_data(
        DataConfig(source="file", path=str(source), format="hh", heldout_rows=300, probe_pairs=0)
    )
    built = build_probe_set(ProbeSetConfig(pairs=200), data.pairs, data.heldout, policy=policy)
    asked = (text for row in built.rows for text in (row.prompt, row.response))
    known = TrainingTexts(data.pairs, asked)
    irrelevant = [row for row in built.rows if row.kind == "irr_test"]
    assert len(irrelevant) == 400
    assert not any(known.answer(row.response) for row in irrelevant)
    assert not any(known.prompt(row.prompt) for row in built.rows if row.split == "heldout")
    assert built.counts.get("probes/flag_in_training", 0) == 0
    assert built.counts.get("probes/flag_end_inside", 0) == 0
