"""A committed result of a stage, with its files, settings, model and recorded steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynolab.errors import ConfigError
from dynolab.store import Store
from dynolab.store.find import find_result
from dynolab.training.step_record import RecordCache, StepRecord

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Result:
    """A result that a study, or any other command, has left in its home.

    - `stage`, `key`: what the command line shows as `<stage>/<key>`.
    - `folder`: its files, verified and not to be changed.
    - `settings`: the stage's.
    - `metrics`: its numbers by name.
    """

    stage: str
    key: str
    folder: Path
    settings: Mapping[str, Any] = field(repr=False)
    metrics: Mapping[str, float] = field(repr=False)
    home: Path = field(repr=False)

    @classmethod
    def open(cls, reference: str, *, home: str | Path | None = None) -> Result:
        """Opens a result by `<stage>/<key>` with the key's first digits, or a stage's newest one.

        **Arguments:** `home`: default: DYNOLAB_HOME, or `.dynolab` in the current folder. Results
        of a store elsewhere (DYNOLAB_STORE) are fetched into the home's cache.

        **Raises:** `ConfigError` if there is no such result, or more than one.
        """
        place = Path(home or os.environ.get("DYNOLAB_HOME") or ".dynolab").expanduser().resolve()
        store = Store(
            os.environ.get("DYNOLAB_STORE") or f"file://{place}/store",
            cache=place / "cache",
            endpoint=os.environ.get("DYNOLAB_STORE_ENDPOINT") or None,
        )
        result, committed = find_result(store, "reference", reference)
        manifest = committed.manifest
        folder = store.folder(result.address(committed), manifest.digest)
        return cls(result.stage, result.key, folder, manifest.config, manifest.metrics, place)

    def model(self) -> PreTrainedModel:
        """The result's model, of a base or a training."""
        from transformers import AutoModelForCausalLM

        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(self._model_folder())
        return model

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's tokenizer, just as its `tokenizer.json` has it."""
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(self._model_folder())

    @property
    def recorded_steps(self) -> tuple[int, ...]:
        """The 0-based steps of a training that were recorded."""
        return tuple(sorted(int(path.name[5:]) for path in self.folder.glob("forces/step-*")))

    def record(self, step: int) -> StepRecord:
        """A recorded step of a training.

        **Raises:** `ConfigError` for a step that was not recorded, and on a machine that has
        neither trained nor replayed it.
        """
        if step not in self.recorded_steps:
            steps = ", ".join(map(str, self.recorded_steps)) or "none; set record_steps"
            raise ConfigError("step", step, f"was not recorded; recorded steps: {steps}")
        record = RecordCache(self.home / "cache" / "records").load(
            self.folder / "forces" / f"step-{step:08d}"
        )
        if record is None:
            raise ConfigError(
                "step",
                step,
                "its tensors are not in this machine's cache; run the study's forces again",
            )
        return record

    def _model_folder(self) -> Path:
        folder = self.folder / "model"
        if not folder.is_dir():
            raise ConfigError(
                "reference",
                f"{self.stage}/{self.key[:12]}",
                "holds no model; open a result of a base or a training",
            )
        return folder
