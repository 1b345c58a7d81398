"""What a report is made of: the rows that training and the force analysis wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from dynolab.data.rows import Split
from dynolab.errors import ConfigError

StageName = Literal["sft", "dpo"]


class Line(BaseModel):
    """Base of the rows read here; fields that no figure needs are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ProbeScore(Line):
    """Log-probability of one answer at one step, nats summed over its tokens (EOS included).

    With the chosen answer also y*: the argmax at every position of the teacher-forced answer.
    """

    step: int
    pair_id: str
    split: Split
    kind: str
    tokens: int
    logp: float
    argmax_logp: float | None = None


class MetricsLine(Line):
    """Training metrics of one optimizer step."""

    step: int
    metrics: dict[str, float | None]


class ForceRow(Line):
    """Measured and predicted Δ log π of one answer over one recorded step, nats."""

    stage: StageName
    step: int
    pair_id: str
    split: Split
    kind: str
    tokens: int
    in_batch: bool
    measured: float
    predicted: float
    from_chosen: float
    from_rejected: float
    from_history: float
    residual: float


class ReplayRow(Line):
    """How exactly the analysis could replay one recorded update."""

    stage: StageName
    step: int
    learning_rate: float
    clip_factor: float
    grad_norm: float
    replay_error: float = Field(description="‖replayed − recorded‖ / ‖recorded‖ of the update.")


class TokenMap(Line):
    """`force[m][l]`: push on log π of the observed answer's token m from the updating token l.

    Columns are the updating pair's chosen tokens, then its rejected ones; nats, first order.
    """

    stage: StageName = "dpo"
    step: int
    observed_id: str
    updating_id: str
    learning_rate: float
    observed_tokens: list[str]
    chosen_tokens: list[str]
    rejected_tokens: list[str]
    force: list[list[float]]

    @model_validator(mode="after")
    def _rectangular(self) -> TokenMap:
        columns = len(self.chosen_tokens) + len(self.rejected_tokens)
        if len(self.force) != len(self.observed_tokens) or any(
            len(row) != columns for row in self.force
        ):
            raise ConfigError(
                "token_map.force",
                f"{len(self.force)} rows",
                f"must be {len(self.observed_tokens)} observed × {columns} updating tokens",
            )
        return self


class StageFacts(Line):
    """One line of the stage table."""

    stage: str
    key: str
    cached: bool = False
    seconds: float | None = None
    mlflow_url: str | None = None


class StudyFacts(Line):
    """What the study was: its name, seed, settings and stages."""

    name: str
    seed: int | None = None
    config_text: str = ""
    stages: tuple[StageFacts, ...] = ()


@dataclass(frozen=True)
class ReportInputs:
    """All that a report shows. What was not measured is empty, and the page says so."""

    facts: StudyFacts
    sft_probes: tuple[ProbeScore, ...] = ()
    dpo_probes: tuple[ProbeScore, ...] = ()
    sft_metrics: tuple[MetricsLine, ...] = ()
    dpo_metrics: tuple[MetricsLine, ...] = ()
    forces: tuple[ForceRow, ...] = ()
    replay: tuple[ReplayRow, ...] = ()
    token_map: TokenMap | None = None


AnyLine = TypeVar("AnyLine", bound=Line)


def read_lines(path: Path, line_type: type[AnyLine]) -> tuple[AnyLine, ...]:
    """The rows of a JSON-lines file; a bad line is named with its number."""
    rows = []
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            if text.strip():
                try:
                    rows.append(line_type.model_validate_json(text))
                except ValidationError as error:
                    raise _bad(f"{path.name} line {number}", error) from error
    return tuple(rows)


def read_inputs(
    facts: StudyFacts,
    *,
    sft: Path | None = None,
    dpo: Path | None = None,
    forces: Sequence[Path] = (),
) -> ReportInputs:
    """Reads a study's outputs.

    **Arguments:** `sft`, `dpo`: folders of training results (`probes.jsonl`, `metrics.jsonl`);
    `forces`: folders of force analyses (`forces.jsonl`, `replay.json`, `token_map.json`); of
    several token maps DPO's is shown. A folder left out, or a file that is not there, is a part
    that was not measured.
    """
    maps = [found for f in forces if (found := _read_json(f / "token_map.json", TokenMap))]
    replays = [_read_json(f / "replay.json", tuple[ReplayRow, ...]) or () for f in forces]

    def rows(folder: Path | None, name: str, kind: type[AnyLine]) -> tuple[AnyLine, ...]:
        path = folder / name if folder else None
        return read_lines(path, kind) if path and path.exists() else ()

    return ReportInputs(
        facts=facts,
        sft_probes=rows(sft, "probes.jsonl", ProbeScore),
        dpo_probes=rows(dpo, "probes.jsonl", ProbeScore),
        sft_metrics=rows(sft, "metrics.jsonl", MetricsLine),
        dpo_metrics=rows(dpo, "metrics.jsonl", MetricsLine),
        forces=tuple(row for f in forces for row in rows(f, "forces.jsonl", ForceRow)),
        replay=tuple(row for replay in replays for row in replay),
        token_map=max(maps, key=lambda found: found.stage == "dpo", default=None),
    )


Parsed = TypeVar("Parsed")


def _read_json(path: Path, expected: type[Parsed]) -> Parsed | None:
    if not path.exists():
        return None
    try:
        return TypeAdapter(expected).validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise _bad(path.name, error) from error


def _bad(where: str, error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"]) or "the line"
    return ConfigError(where, field, f"{first['msg']}; run the stage that wrote it again")
