"""A small store made in this process: data, a base model, and a training with a recorded step."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from dynolab.data.sources.load import DataConfig
from dynolab.data.world.world import WorldConfig
from dynolab.store import Store
from dynolab.training.config import EngineConfig, TrainConfig
from tasks.base import BASE, BaseConfig
from tasks.data import DATA
from tasks.runtime.stage import Platform, run_stage
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.progress import PlainLines, Progress
from tasks.runtime.work import StageResult
from tasks.training import SFT
from tests.runtime.doubles import MemoryTracking

PLAIN = EngineConfig(kind="plain", ranks=1)
WORLD = WorldConfig(entities=20, train_pairs=12, heldout_pairs=6, corpus_rows=64)


class Analysed:
    """The platform, and the results `data`, `base` and `sft` on it."""

    def __init__(self, home: Path) -> None:
        settings = Settings(home=home, store=f"file://{home}/store")
        self.tracking = MemoryTracking()
        self.platform = Platform(
            settings,
            Store(settings.store, cache=settings.cache),
            lambda: self.tracking,
            lambda: Progress(PlainLines(StringIO())),
        )
        training = TrainConfig(engine=PLAIN, steps=4, batch_size=4)
        self.data = self.run(DATA, DataConfig(world=WORLD))
        self.base = self.run(BASE, BaseConfig(training=training), data=self.data)
        recorded = training.model_copy(update={"record_steps": (1, 3)})
        self.sft = self.run(SFT, recorded, data=self.data, model=self.base)

    def run(self, stage, config, name: str | None = None, **inputs: StageResult) -> StageResult:  # type: ignore[no-untyped-def]
        return run_stage(stage, config, inputs, self.platform, name=name)

    def folder(self, result: StageResult, subfolder: str | None = None) -> Path:
        return self.platform.store.folder(result.address, result.digest, subfolder)
