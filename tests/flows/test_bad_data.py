"""Rows that cannot work end a study before any training, with one message."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.data.rows import Example, write_rows
from dynolab.data.sources.load import DataConfig
from dynolab.errors import ConfigError
from dynolab.training.config import TrainConfig
from tasks.data import DATA
from tasks.training import SFT
from tests.flows.analysed import PLAIN, Analysed


def test_a_row_longer_than_the_context_is_refused(analysed: Analysed, tmp_path: Path) -> None:
    file, long = tmp_path / "pairs.jsonl", "why " * 2000
    write_rows(file, [Example(id=f"r{n}", prompt=f"{n} {long}?", chosen="it .") for n in range(8)])
    data = analysed.run(DATA, DataConfig(source="file", path=str(file), heldout_rows=2))
    config = TrainConfig(engine=PLAIN, steps=2, batch_size=4)
    with pytest.raises(ConfigError, match=r"overlong = 'error': row r\d.*set overlong to drop"):
        analysed.run(SFT, config, data=data, model=analysed.base)
