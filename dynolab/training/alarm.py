"""The alarm on the squeezing gap, updated with every probe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.rows import ProbeRow
from dynolab.errors import ConfigError
from dynolab.results.study import AlarmRing, MetricsLine

GAP, RISE, RANG = "squeeze/gap", "squeeze/rise", "squeeze/alarm"
"""Metrics: the gap, its growth since the training's first probe, and 1 when the alarm rings."""


class AlarmConfig(BaseModel):
    """Bounds of `squeeze/gap`, the mean over training pairs of log π(y*) − log π(y⁺), in nats.

    y* rises under SFT as well; the gap separates squeezing from learning (arXiv 2407.10490, §4).
    A gap that has not grown since the first probe never rings the alarm, however wide: SFT starts
    with a wide gap and narrows it. `margin` bounds what is learned: the growth of the mean of
    log π(y⁺) − log π(y⁻).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    gap: float | None = Field(default=None, description="Rings above this gap.")
    rise: float | None = Field(
        default=None, gt=0, description="Rings above this growth of the gap."
    )
    margin: float | None = Field(
        default=None,
        gt=0,
        exclude_if=lambda margin: margin is None,
        description="Rings when chosen − rejected has grown by so many nats: arms that stop there "
        "are compared where they have learned as much.",
    )
    stop: bool = Field(
        default=True,
        description="End training when it rings and keep the model of that step; false: go on.",
    )

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.gap is None and self.rise is None and self.margin is None:
            raise ConfigError(
                "alarm",
                None,
                "set rise, the largest allowed growth of the gap in nats, or gap, or margin",
            )
        return self


class Alarm:
    """A training's alarm and its state.

    **Arguments:** `history`: metrics that a resumed training logged before.
    """

    def __init__(self, config: AlarmConfig, history: Iterable[MetricsLine] = ()) -> None:
        self.config = config
        self.ring: AlarmRing | None = None
        """The first ring."""
        self._first: float | None = None
        self._first_margin: float | None = None
        for line in history:
            if GAP in line.metrics:
                self.update(line.step, line.metrics)

    @property
    def stops(self) -> bool:
        """Whether training should end."""
        return self.config.stop and self.ring is not None

    def update(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Takes the means of a probe after `step` optimizer steps; returns the alarm's metrics.

        **Raises:** `ConfigError` if no chosen answer was short enough to score.
        """
        if GAP not in metrics:
            raise ConfigError(
                "alarm",
                self.config.model_dump(exclude_none=True),
                "every chosen answer among the probes is too long for the model's context, so the "
                "gap is undefined; probe shorter answers, or set overlong: truncate_left",
            )
        gap = metrics[GAP]
        if self._first is None:
            self._first = gap
        rise = gap - self._first
        bounds = ((gap, self.config.gap), (rise, self.config.rise))
        over = rise > 0 and any(bound is not None and value > bound for value, bound in bounds)
        over |= self._has_learned(metrics)
        if self.ring is not None or not over:
            return {RISE: rise}
        self.ring = AlarmRing(step=step, gap=gap, rise=rise, stopped=self.config.stop)
        return {RISE: rise, RANG: 1.0}

    def _has_learned(self, metrics: Mapping[str, float]) -> bool:
        """Whether the margin has grown beyond its bound."""
        if self.config.margin is None:
            return False
        margin = metrics["probe/chosen/logp"] - metrics["probe/rejected/logp"]
        if self._first_margin is None:
            self._first_margin = margin
        return margin - self._first_margin >= self.config.margin


def check_watched(alarm: AlarmConfig | None, probes: Sequence[ProbeRow]) -> None:
    """Raises ConfigError for an alarm if the probes cannot measure the gap, or the margin."""
    if alarm is None:
        return
    watched = {row.kind for row in probes if row.split == "train"}
    for kind in ("chosen", "rejected") if alarm.margin is not None else ("chosen",):
        if kind not in watched:
            raise ConfigError(
                "alarm",
                alarm.model_dump(exclude_none=True),
                f"no probe is the {kind} answer of a training pair, so its bound is undefined; "
                "probe some pairs (probe_every, data.probe_pairs), or remove the alarm",
            )
