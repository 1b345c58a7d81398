"""The alarm on the squeezing gap: when it rings, decided from what the probes have found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.rows import ProbeRow
from dynolab.errors import ConfigError
from dynolab.results.study import AlarmRing, MetricsLine

GAP, RISE, RANG = "squeeze/gap", "squeeze/rise", "squeeze/alarm"
"""Metrics: the gap, its growth since the training's first probe, and 1 where the alarm rang."""


class AlarmConfig(BaseModel):
    """Bounds of `squeeze/gap`, the mean over training pairs of log π(y*) − log π(y⁺), in nats.

    y* rises under SFT as well; the gap separates squeezing from learning (arXiv 2407.10490, §4).
    A gap that has not grown since the first probe rings no alarm, however wide it is: SFT starts
    with a wide one and narrows it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    gap: float | None = Field(default=None, description="Rings above this gap.")
    rise: float | None = Field(
        default=None, gt=0, description="Rings above this growth of the gap."
    )
    stop: bool = Field(
        default=True,
        description="Training ends where it rings, with the model as it is; or it goes on.",
    )

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.gap is None and self.rise is None:
            raise ConfigError(
                "alarm", None, "set rise, the growth of the gap in nats that is too much, or gap"
            )
        return self


class Alarm:
    """A training's alarm, and what it has heard so far.

    **Arguments:** `heard`: what a resumed training's probes have logged before.
    """

    def __init__(self, config: AlarmConfig, heard: Iterable[MetricsLine] = ()) -> None:
        self.config = config
        self.ring: AlarmRing | None = None
        """The first time that it rang."""
        self._first: float | None = None
        for line in heard:
            if GAP in line.metrics:
                self.update(line.step, line.metrics)

    @property
    def stops(self) -> bool:
        """Whether training is to end."""
        return self.config.stop and self.ring is not None

    def update(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Takes the means of a probe after `step` optimizer steps; returns what to log beside.

        **Raises:** `ConfigError` where no watched chosen answer was left to score.
        """
        if GAP not in metrics:
            raise ConfigError(
                "alarm",
                self.config.model_dump(exclude_none=True),
                "every watched chosen answer is too long for the model's context, so there is no "
                "gap; watch shorter ones, or set overlong: truncate_left",
            )
        gap = metrics[GAP]
        if self._first is None:
            self._first = gap
        rise = gap - self._first
        bounds = ((gap, self.config.gap), (rise, self.config.rise))
        over = any(bound is not None and value > bound for value, bound in bounds)
        if self.ring is not None or not over or not rise > 0:
            return {RISE: rise}
        self.ring = AlarmRing(step=step, gap=gap, rise=rise, stopped=self.config.stop)
        return {RISE: rise, RANG: 1.0}


def check_watched(alarm: AlarmConfig | None, probes: Sequence[ProbeRow]) -> None:
    """Refuses an alarm on a gap that no probe would find."""
    if alarm is None or any(row.kind == "chosen" and row.split == "train" for row in probes):
        return
    raise ConfigError(
        "alarm",
        alarm.model_dump(exclude_none=True),
        "no chosen answer of a training pair is watched, so there is no gap; watch some "
        "(probe_every, data.probe_pairs), or leave the alarm out",
    )
