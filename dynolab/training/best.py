"""Keeps the weights at the probe where a metric was best, to make them the training's result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from dynolab import distributed
from dynolab.data.rows import ProbeRow, read_value
from dynolab.errors import ConfigError
from dynolab.probes.score import mean_by_kind
from dynolab.results.study import BestProbe, Score
from dynolab.training.config import BestConfig
from dynolab.training.engine import Engine

FOLDER = "best"
"""Folder inside the output, deleted when training ends."""


def check_metric(config: BestConfig, probes: Sequence[ProbeRow]) -> None:
    """Raises `ConfigError` for a metric that probes of these rows will not measure."""
    scores = [
        Score(
            pair_id=row.pair_id,
            split=row.split,
            kind=row.kind,
            tokens=1,
            logp=0.0,
            argmax_logp=0.0,
        )
        for row in probes
    ]
    names = mean_by_kind(scores)
    # An alarm adds others of the gap.
    if config.metric not in names and not config.metric.startswith("squeeze/"):
        choices = (
            f"choose one of {', '.join(names)}" if names else "watch answers: data.probe_pairs"
        )
        raise ConfigError("best.metric", config.metric, f"no probe measures it; {choices}")


class Best:
    """The best probe so far, and its weights on disk. `update` is collective over the ranks.

    **Arguments:** `output`: the training's output; a resumed training's best probe is read from it.
    """

    def __init__(self, config: BestConfig, output: Path) -> None:
        self._config, self._folder = config, output / FOLDER
        stored = self._folder / "probe.json"
        self.probe = read_value(stored, BestProbe) if stored.exists() else None

    def update(self, engine: Engine, step: int, means: Mapping[str, float]) -> None:
        """Takes the means of a probe after `step` optimizer steps.

        **Raises:** `ConfigError` if no probe measures the metric.
        """
        metric = self._config.metric
        if metric not in means:
            raise ConfigError(
                "best.metric", metric, f"no probe measures it; choose one of {', '.join(means)}"
            )
        probe = BestProbe(step=step, metric=metric, value=means[metric])
        # Only rank 0 decides: rounding may differ between ranks.
        if not distributed.gather(self._is_better(probe.value))[0]:
            return
        self.probe, weights = probe, engine.master_weights()
        if distributed.rank() == 0:
            self._keep(probe, weights)

    def weights(self) -> dict[str, Tensor]:
        """The best probe's fp32 weights by parameter name; on rank 0 only."""
        return load_file(self._folder / "weights.safetensors")

    def _is_better(self, value: float) -> bool:
        sign = 1 if self._config.largest else -1
        best = self.probe
        return math.isfinite(value) and (best is None or sign * value > sign * best.value)

    def _keep(self, probe: BestProbe, weights: Mapping[str, Tensor]) -> None:
        """Replaces the files, never rewrites them: resume states may hard-link the old ones."""
        self._folder.mkdir(exist_ok=True)
        part = self._folder / "part"
        save_file({name: weight.contiguous() for name, weight in weights.items()}, part)
        part.replace(self._folder / "weights.safetensors")
        part.write_text(probe.model_dump_json())
        part.replace(self._folder / "probe.json")
