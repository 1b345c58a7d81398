"""Rows of single answers with a label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynolab.data.encode import Encoder
from dynolab.data.rows import write_rows
from dynolab.data.sources.load import load_data
from dynolab.errors import ConfigError
from dynolab.objectives import DPOConfig, KTOConfig, SFTConfig
from dynolab.training.examples import load_examples
from tests.data.rows_files import file_config, write
from tests.training.small import make_tokenizer

ROWS: list[dict[str, Any]] = [
    {"prompt": f"question {n} ?", "completion": f" answer {n} .", "label": n % 3 == 0}
    for n in range(12)
]


def config(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> Any:
    return file_config(write(folder, rows), format="unpaired", **settings)


def test_every_row_is_read_for_itself(tmp_path: Path) -> None:
    data = load_data(config(tmp_path, ROWS, heldout_rows=2, probe_pairs=10))
    rows = {row.id: row for row in [*data.pairs, *data.heldout]}
    assert len(rows) == 12
    for number, record in enumerate(ROWS):
        row = rows[f"row-{number:06d}"]
        assert (row.prompt, row.chosen) == (record["prompt"], record["completion"])
        assert (row.label, row.rejected) == (record["label"], None)
    kinds = {(row.pair_id, row.kind) for row in data.probes}
    for row in data.pairs[:10]:
        assert ((row.id, "chosen") in kinds) == row.label
        assert ((row.id, "rejected") in kinds) != row.label


@pytest.mark.parametrize("label", [None, "good", 1])
def test_a_label_is_true_or_false(tmp_path: Path, label: Any) -> None:
    with pytest.raises(ConfigError, match="column label"):
        load_data(config(tmp_path, [*ROWS, ROWS[0] | {"label": label}]))


def test_an_objective_takes_the_rows_that_it_is_for(tmp_path: Path) -> None:
    data, encoder = load_data(config(tmp_path, ROWS)), Encoder(make_tokenizer(), 32, "error")
    file = tmp_path / "train.jsonl"
    write_rows(file, data.pairs)
    labelled = load_examples(file, encoder, KTOConfig())
    assert [one.label for one in labelled] == [row.label for row in data.pairs]
    good = load_examples(file, encoder, SFTConfig())
    assert [one.id for one in good] == [row.id for row in data.pairs if row.label]
    assert {one.label for one in good} == {None}
    with pytest.raises(ConfigError, match=r"data\.format"):
        load_examples(file, encoder, DPOConfig())
    write_rows(file, [row for row in data.pairs if row.label])
    with pytest.raises(ConfigError, match=r"data\.label"):
        load_examples(file, encoder, KTOConfig())
    write_rows(file, [row.model_copy(update={"label": None}) for row in data.pairs])
    with pytest.raises(ConfigError, match=r"data\.label"):
        load_examples(file, encoder, KTOConfig())
