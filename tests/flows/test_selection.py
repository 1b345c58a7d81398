from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.data.rows import Example, ProbeRow, write_rows
from dynolab.errors import ConfigError
from dynolab.objectives.dpo import DPOConfig
from tasks.shared.selection import SelectionConfig, observed_rows, updating_rows


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four training and two held-out pairs, of which the held-out ones bear known ids too."""
    pairs = [Example(id=f"q{n}", prompt="?", chosen=" a", rejected=" b") for n in range(4)]
    write_rows(tmp_path / "train.jsonl", pairs)
    probes = [
        ProbeRow(pair_id=f"q{n}", split=split, kind=kind, prompt="?", response=" a", made_by="x")
        for split, count in (("train", 3), ("heldout", 2))
        for n in range(count)
        for kind in ("chosen", "rejected")
    ]
    write_rows(tmp_path / "probes.jsonl", probes)
    return tmp_path


def test_the_first_pairs_are_taken_where_none_is_named(data: Path) -> None:
    config = SelectionConfig(observed_pairs=1, updating_pairs=2)
    assert {(row.split, row.pair_id) for row in observed_rows(data, config)} == {
        ("train", "q0"),
        ("heldout", "q0"),
    }
    assert [row.id for row in updating_rows(data, config)] == ["q0", "q1"]


def test_named_pairs_are_observed_and_update(data: Path) -> None:
    config, named = SelectionConfig(), ("q1",)
    observed = [(row.split, row.pair_id, row.kind) for row in observed_rows(data, config, named)]
    assert observed == [("train", "q1", "chosen"), ("train", "q1", "rejected")]
    assert [row.id for row in updating_rows(data, config, DPOConfig(), named)] == ["q1"]


def test_pairs_that_are_not_there_are_refused(data: Path) -> None:
    with pytest.raises(ConfigError, match=r"pair_ids = 'q3': none of them is watched.*q0, q1"):
        observed_rows(data, SelectionConfig(), ("q3",))
    with pytest.raises(ConfigError, match=r"pair_ids = 'q9': is not the id of a training pair"):
        updating_rows(data, SelectionConfig(), pair_ids=("q9",))
