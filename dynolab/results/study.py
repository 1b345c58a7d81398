"""Rows of a study's results, each with its meaning and unit, and a training's from its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from dynolab.data.rows import AnyRow, Row, Split, json_lines, read_rows, read_value
from dynolab.data.world.answer_kinds import AnswerKind
from dynolab.errors import ConfigError
from dynolab.results.forces import LayerForce, Validity

ARGMAX = "argmax"
"""Kind of y*: the likeliest token at every position of the teacher-forced chosen answer."""

ObjectiveName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$")]


class TokenScores(Row):
    """A model's scores of every token of an answer, one entry each, end-of-sequence included.

    `token`: the answer's own token y; `logp`: log π_y, nats; `rank`: 1 + the number of likelier
    tokens; `argmax`: y*, the likeliest; `argmax_logp` and `outside_logmass`: log π(y*) and
    log(1 − π(y*)), nats; `entropy` of π, nats; `energy`: 1 − π_y; `a_frobenius`: ‖A‖_F of
    A = I − 1πᵀ.
    """

    token: tuple[int, ...]
    logp: tuple[float, ...]
    rank: tuple[int, ...]
    argmax: tuple[int, ...]
    argmax_logp: tuple[float, ...]
    outside_logmass: tuple[float, ...]
    entropy: tuple[float, ...]
    energy: tuple[float, ...]
    a_frobenius: tuple[float, ...]


class Score(Row):
    """Likelihood of one answer: `logp` = Σ_l log π(y_l | x, y_<l), nats, end-of-sequence included.

    y* is the model's likeliest token at each position of the answer: `argmax_logp` =
    Σ_l max_v log π(v | x, y_<l), `outside_logmass` = Σ_l log(1 − π(argmax)), `outside_mass`, the
    mean over positions of 1 − π(argmax), and `argmax_tokens_equal`, the share of positions where
    the argmax is the answer's own token.

    Means over the answer's tokens: `log_rank`, of the logarithm of a token's rank (0 where every
    token is the argmax); `entropy`, nats; `energy`, of 1 − π(y_l). `a_frobenius` is the root of
    the mean of ‖A_l‖²_F, so that √tokens times it is ‖A‖_F of the whole answer. `token_scores`
    is optional.
    """

    pair_id: str
    split: Split
    kind: str
    tokens: int
    logp: float
    argmax_logp: float | None = None
    outside_logmass: float | None = None
    outside_mass: float | None = None
    argmax_tokens_equal: float | None = None
    log_rank: float | None = None
    entropy: float | None = None
    energy: float | None = None
    a_frobenius: float | None = None
    token_scores: TokenScores | None = None

    def line(self) -> str:
        """One line of JSON, without unmeasured fields."""
        return self.model_dump_json(exclude_none=True) + "\n"


class ProbeScore(Score):
    """A score after `step` optimizer steps: `probes.jsonl`."""

    step: int


class ModelScore(Score):
    """A score by a finished model: `scores.jsonl`."""

    model: str


class Answer(Row):
    """A model's answer to a prompt, beside the answer that it should prefer: `answers.jsonl`.

    `finished`: it ended with end-of-sequence within the token limit. `taken_from`: the training
    question that it answers instead of the held-out one, if any; `taken_exactly`: it repeats that
    question's answer in full. `borrowed`: share of its phrases that it has from answers to other
    training questions (`TrainingAnswers.borrowed`); None without phrases. In the built-in world,
    `says` is what it says of what is asked, and `stated` whether the base corpus states that fact.
    """

    model: str
    pair_id: str
    split: Split
    prompt: str
    chosen: str
    answer: str
    finished: bool
    taken_from: str | None = None
    taken_exactly: bool = False
    borrowed: float | None = None
    says: AnswerKind | None = None
    stated: bool | None = None


class PairChange(Row):
    """Change of one watched pair from start to end of a training, in nats: `pairs.jsonl`.

    `chosen` = Δ log π(y⁺), `rejected` = Δ log π(y⁻), `margin` = `chosen` − `rejected`, `gap` =
    Δ(log π(y*) − log π(y⁺)) along the chosen answer. None: not watched.
    """

    pair_id: str
    prompt: str | None
    chosen: float
    rejected: float | None
    margin: float | None
    gap: float | None


OTHER_RANKS = "resumed/ranks"
"""Logged where a training goes on in other parts than those before: on how many ranks."""


class MetricsLine(Row):
    """Metrics after `step` optimizer steps and `examples` examples; `time` in unix seconds.

    NaN and infinity are written as they are, so that divergence is visible.
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")
    step: int
    examples: int
    time: float
    metrics: dict[str, float]


class ForceRow(Row):
    """Δ log π of one answer over one recorded step, summed over its tokens, in nats.

    `stage` is the objective's name. `predicted` is the first order along the realised change of
    the weights, the sum of its parts: `from_chosen` and `from_rejected` are what the step would
    have lacked without all chosen or all rejected answers of its batch, `from_together` what both
    did by sharing a clip factor and a second moment (0 in files from before it, whose other parts
    are shares of the step as it was), `from_history` what momentum and decay did; `residual` is
    measured − predicted. `in_batch`: the answer's pair was in the step's batch.
    """

    stage: ObjectiveName
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
    from_together: float = 0.0
    from_history: float
    residual: float


class ReplayFacts(Row):
    """How exactly the analysis replayed one recorded update.

    `replay_error` = ‖replayed − recorded‖/‖recorded‖ over the weights; `rounding_floor` is the
    part of it that the storage of the weights alone causes in a perfect replay; `closure_error` =
    ‖Σ parts − predicted‖/‖predicted‖ over the watched answers, the part of the error that affects
    answers. Under AdamW and RMSprop, `replay_error` far above the floor with a small
    `closure_error` means weights whose true gradient is zero (GPT-NeoX's key biases, which
    softmax cancels): the optimizer blows their rounding noise up to full-sized steps, which
    differ with the order of summation and affect no answer.
    """

    stage: ObjectiveName
    step: int
    learning_rate: float
    clip_factor: float
    grad_norm: float
    replay_error: float
    rounding_floor: float
    closure_error: float


class TokenMap(Row):
    """`force[m][l]`: push on log π of observed token m from update token l, in nats, first order.

    Columns are the updating example's chosen tokens, then its rejected ones. A positive entry
    means that the step, through token l, made token m likelier. `step` is None for a gradient step
    that was not taken.
    """

    stage: ObjectiveName
    step: int | None
    observed_id: str
    observed_kind: str = "chosen"
    updating_id: str
    learning_rate: float
    observed_tokens: list[str]
    chosen_tokens: list[str]
    rejected_tokens: list[str]
    force: list[list[float]] = Field(description="One list per observed token, all of one length.")

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


class AlarmRing(Row):
    """When the alarm on `squeeze/gap` rang: after `step` optimizer steps, at a gap of `gap` nats.

    `rise` is the gap's growth since the training's first probe, in nats; `stopped`: the alarm was
    set to end the training there.
    """

    step: int
    gap: float
    rise: float
    stopped: bool


class BestProbe(Row):
    """The probe, after `step` optimizer steps, at which a metric was best."""

    step: int
    metric: str
    value: float


class TrainingSummary(Row):
    """Summary of a training: `summary.json`. `rows` counts the rows kept and left out.

    `steps` counts the updates made, which are fewer than set if `alarm` ended the training.
    `best`: the probe whose model is the result, if that is not the last step's.
    """

    steps: int
    objective: ObjectiveName
    rows: dict[str, int]
    alarm: AlarmRing | None = Field(default=None, exclude_if=lambda ring: ring is None)
    best: BestProbe | None = Field(default=None, exclude_if=lambda probe: probe is None)


class RisenMass(Row):
    """Which tokens gained probability between two policies on one teacher-forced answer.

    Sums over the answer's positions, in units of probability: `risen` = Σ_l Σ_i (Δπ_i)₊; of that,
    `argmax` is the part of the token that was likeliest under the policy before, and `own` the part
    of the answer's own token (counted in both where they are the same token).
    """

    training: ObjectiveName
    step: int
    pair_id: str
    split: Split
    kind: str
    tokens: int
    risen: float
    argmax: float
    own: float


class TokenProbability(Row):
    """A token's probability at one position of a chosen answer, in a state of a training.

    `after`: the answer up to there; `role`: `chosen`, `rejected`, `argmax` (the likeliest token at
    the training's start), or `other`.
    """

    pair_id: str
    after: str
    step: int
    token: str
    role: str
    probability: float


class Repetition(Row):
    """How much one generation repeats itself, in tokens, end-of-sequence left out.

    `distinct_1`, `_2`, `_3`: different n-grams over all n-grams, 1 where there is none;
    `longest_repeat`: length of the longest run of tokens that occurs twice; `entropy` of its token
    frequencies, nats. `repeater`: that run is a third or more of a generation that is not short.
    """

    tokens: int
    distinct_1: float
    distinct_2: float
    distinct_3: float
    longest_repeat: int
    entropy: float
    repeater: bool


class Generation(Repetition):
    """The repetition of a model's answer to a prompt; `finished`: it ended with end-of-sequence."""

    model: str
    pair_id: str
    split: Split
    finished: bool


@dataclass(frozen=True)
class Training:
    """One training and the analysis of its recorded steps. Fields that were not measured are empty.

    `name`: the study's name for the training; `stage`: its objective's name; `rows`: counts of
    pairs that were kept, truncated and dropped; `alarm`: set if its alarm rang.
    """

    name: str
    stage: ObjectiveName
    rows: Mapping[str, int] = field(default_factory=dict)
    probes: tuple[ProbeScore, ...] = ()
    metrics: tuple[MetricsLine, ...] = ()
    forces: tuple[ForceRow, ...] = ()
    replay: tuple[ReplayFacts, ...] = ()
    validity: tuple[Validity, ...] = ()
    layers: tuple[LayerForce, ...] = ()
    token_map: TokenMap | None = None
    alarm: AlarmRing | None = None


def read_training(name: str, trained: Path, forces: Path | None = None) -> Training:
    """Reads the results of a training stage and of its force analysis.

    A missing file is a part that was not measured. Raises ConfigError for an invalid file.
    """
    summary = read_value(trained / "summary.json", TrainingSummary)
    replay, token_map = (
        (forces / "replay.json", forces / "token_map.json") if forces else (None, None)
    )
    return Training(
        name=name,
        stage=summary.objective,
        rows=summary.rows,
        alarm=summary.alarm,
        probes=rows(trained, "probes.jsonl", ProbeScore, optional=True),
        metrics=rows(trained, "metrics.jsonl", MetricsLine, optional=True),
        forces=rows(forces, "forces.jsonl", ForceRow, optional=True),
        replay=read_value(replay, tuple[ReplayFacts, ...]) if replay and replay.exists() else (),
        layers=rows(forces, "layers.jsonl", LayerForce, optional=True),
        validity=rows(forces, "validity.jsonl", Validity, optional=True),
        token_map=read_value(token_map, TokenMap) if token_map and token_map.exists() else None,
    )


def records(folder: Path, file: str) -> list[dict[str, Any]]:
    """The rows of a stage's file as mappings; empty without the file."""
    path = folder / file
    return list(map(json.loads, json_lines(path))) if path.exists() else []


def rows(
    folder: Path | None, file: str, kind: type[AnyRow], *, optional: bool = False
) -> tuple[AnyRow, ...]:
    """The rows of a stage's file; empty without a folder or, if `optional`, without the file.

    Raises ConfigError for a file with other rows.
    """
    if folder is None or (optional and not (folder / file).exists()):
        return ()
    return tuple(read_rows(folder / file, kind))
