"""A small store made in this process: data, a base model, and a training with a recorded step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dynolab.data.sources.load import DataConfig
from dynolab.data.world.world import WorldConfig
from dynolab.training.config import EngineConfig, TrainConfig
from tasks.base import BASE, BaseConfig
from tasks.data import DATA
from tasks.runtime.stage import run_stage
from tasks.runtime.work import StageResult
from tasks.training import SFT
from tests.flows.in_process import InProcess, short

PLAIN = EngineConfig(kind="plain", ranks=1)
WORLD = WorldConfig(entities=20, train_pairs=12, heldout_pairs=6, corpus_rows=64)


class Analysed(InProcess):
    """The platform, and the results `data`, `base` and `sft` on it."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        training = TrainConfig(engine=PLAIN, steps=4, batch_size=4)
        self.data = self.run(DATA, DataConfig(world=WORLD))
        self.base = self.run(BASE, BaseConfig(training=training), data=self.data)
        recorded = training.model_copy(update={"record_steps": (1, 3)})
        self.sft = self.run(SFT, recorded, data=self.data, model=self.base)

    def run(self, stage, config, name: str | None = None, **inputs: StageResult) -> StageResult:  # type: ignore[no-untyped-def]
        return run_stage(stage, config, inputs, self.platform, name=name)

    def named(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings with the names of the results for DATA, BASE and SFT."""
        text = json.dumps(settings)
        for word, result in (("DATA", self.data), ("BASE", self.base), ("SFT", self.sft)):
            text = text.replace(word, short(result))
        return json.loads(text)
