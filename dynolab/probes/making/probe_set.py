"""Builds a probe set of any kinds, from data, policy and writer, in a fixed order with flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.probes.build import Missing, Watched, rows_from_data, watched_pairs
from dynolab.data.probes.kinds import (
    DATA_KINDS,
    OF_REJECTED,
    POLICY_KINDS,
    WRITER_KINDS,
    DataKind,
    Kind,
    PolicyKind,
    WriterKind,
)
from dynolab.data.probes.overlap import disjoint, flag_rows
from dynolab.data.rows import Example, ProbeRow
from dynolab.endpoint import Endpoint, EndpointConfig
from dynolab.endpoint.client import OnProgress, ignore_progress
from dynolab.errors import ConfigError
from dynolab.probes.making.written import Policy, rows_from_policy, rows_from_writer
from dynolab.rollouts.generator import SampleConfig

AnyKind = TypeVar("AnyKind", bound=str)


PAIRS = 100
"""Pairs of each split that are probed where no number is given."""


class ProbeSetConfig(BaseModel):
    """The kinds of a probe set, and how to make those that are not in the data."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kinds: tuple[Kind, ...] = Field(
        DATA_KINDS,
        description="From the data: chosen, rejected, irr_train, irr_test, random_permute, "
        "random_nonhum. From the untrained policy: chosen_initial, chosen_selfr. From the writer: "
        "chosen_gptsemantic, reject_gptsemantic, chosen_gptformat, reject_gptformat, irr_hum.",
    )
    taken: tuple[Kind, ...] = Field(
        (),
        description="Kinds among these whose rows are taken from the data instead of made: the "
        "built-in world's exact ones, a probe file's stored ones.",
    )
    pairs: int | None = Field(
        None, ge=1, description="Pairs to probe, of each split; default: data.probe_pairs."
    )
    temperature: float = Field(1.0, ge=0, description="Sampling temperature of the policy.")
    max_new_tokens: int = Field(128, ge=1, description="Longest sampled answer.")
    stop: tuple[str, ...] = Field(
        ("\n\nHuman:",), description="Texts that end the policy's answers: the next human turn."
    )
    sample_batch_size: int = Field(64, ge=1, description="Answers sampled at once.")
    writer: EndpointConfig | None = Field(
        None, description="The judge-class model that writes the last five kinds."
    )
    most_missing: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Largest share of the writer's rows that may be missing. Above it nothing is "
        "committed, and the next run reuses the answers so far.",
    )
    seed: int = Field(0, ge=0, description="Of random draws and samples.")

    @model_validator(mode="after")
    def _can_be_made(self) -> ProbeSetConfig:
        for field in ("kinds", "taken"):
            repeated = [kind for kind, count in Counter(getattr(self, field)).items() if count > 1]
            if repeated:
                raise ConfigError(field, repeated[0], "must be listed only once")
        if "chosen" not in self.kinds:
            raise ConfigError(
                "kinds", list(self.kinds), "add chosen; y* and the gap are measured along it"
            )
        unlisted = [kind for kind in self.taken if kind not in self.kinds]
        if unlisted:
            raise ConfigError("taken", unlisted[0], "not in kinds; add it there, too")
        if self.writer_kinds and self.writer is None:
            raise ConfigError(
                "writer",
                None,
                f"{self.writer_kinds[0]} needs a writer; set writer.model, take the kind from the "
                "data (taken), or remove it",
            )
        return self

    def _made(self, kinds: tuple[AnyKind, ...]) -> tuple[AnyKind, ...]:
        return tuple(kind for kind in kinds if kind in self.kinds and kind not in self.taken)

    @property
    def data_kinds(self) -> tuple[DataKind, ...]:
        """Kinds made from the pairs alone."""
        return self._made(DATA_KINDS)

    @property
    def policy_kinds(self) -> tuple[PolicyKind, ...]:
        """Kinds that need the untrained policy."""
        return self._made(POLICY_KINDS)

    @property
    def writer_kinds(self) -> tuple[WriterKind, ...]:
        """Kinds that need the writer."""
        return self._made(WRITER_KINDS)

    @property
    def sampling(self) -> SampleConfig:
        """How the policy's answers are sampled."""
        return SampleConfig(
            temperature=self.temperature,
            max_new_tokens=self.max_new_tokens,
            stop=self.stop,
            batch_size=self.sample_batch_size,
            seed=self.seed,
        )


@dataclass(frozen=True)
class ProbeSet:
    """Rows, ordered by pair and then by kind, and the rows that could not be made."""

    rows: list[ProbeRow]
    missing: list[Missing]

    @property
    def counts(self) -> dict[str, float]:
        """Metrics: number of rows, of missing rows, and of rows with each flag."""
        flags = Counter(chain.from_iterable(row.flags for row in self.rows))
        sizes = {"probes/rows": len(self.rows), "probes/missing": len(self.missing)}
        named = {f"probes/flag_{name}": count for name, count in sorted(flags.items())}
        return {name: float(count) for name, count in (sizes | named).items()}


def build_probe_set(
    config: ProbeSetConfig,
    train: Sequence[Example],
    heldout: Sequence[Example],
    *,
    extra: Sequence[ProbeRow] = (),
    policy: Policy | None = None,
    endpoint: Endpoint | None = None,
    on_progress: OnProgress = ignore_progress,
) -> ProbeSet:
    """Builds probe rows of the first training pairs and the first held-out pairs.

    Every response has one leading space, unless it is empty, and encoding adds the end-of-sequence
    to each: kinds differ only in their words.

    **Arguments:**

    - `train`: every row that training will see.
    - `heldout`: other rows; those that share a prompt or an answer with `train` are left out.
    - `extra`: existing rows, used for the kinds in `config.taken`.
    - `policy`: the model before training, if kinds need it; its tokenizer adds flags to rows.
    - `endpoint`: the writer, if kinds need it, made with `usable=has_text`.
    - `on_progress(done, of)`: called as the writer's answers arrive.

    **Raises:** `ConfigError` if a kind's rows, policy or endpoint are not given, and if more than
    `config.most_missing` of the writer's rows are missing; also as `Endpoint.ask`.
    """
    unseen = disjoint(heldout, train)
    watched = watched_pairs(train, unseen, config.pairs or PAIRS)
    rows = rows_from_data(watched, train, unseen, kinds=config.data_kinds, seed=config.seed)
    reused, missing = _taken(config.taken, watched, extra)
    rows += reused
    if config.policy_kinds:
        if policy is None:
            raise ConfigError("kinds", config.policy_kinds[0], "needs the untrained policy")
        written_rows, not_made = rows_from_policy(
            policy, watched, kinds=config.policy_kinds, sampling=config.sampling
        )
        rows, missing = rows + written_rows, missing + not_made
    if config.writer_kinds:
        if endpoint is None:
            raise ConfigError("kinds", config.writer_kinds[0], "needs the writer's endpoint")
        written_rows, not_made = rows_from_writer(
            endpoint, watched, kinds=config.writer_kinds, on_progress=on_progress
        )
        _check_missing(config, len(written_rows), not_made)
        rows, missing = rows + written_rows, missing + not_made
    tokenizer = None if policy is None else policy.tokenizer
    flagged = flag_rows(rows, [pair.example for pair in watched], train, tokenizer)
    return ProbeSet(_ordered(flagged, watched, config.kinds), missing)


def _taken(
    kinds: Sequence[Kind], watched: Sequence[Watched], extra: Sequence[ProbeRow]
) -> tuple[list[ProbeRow], list[Missing]]:
    by_key = {(row.split, row.pair_id, row.kind): row for row in extra}
    absent = [kind for kind in kinds if not any(kind == key[2] for key in by_key)]
    if absent:
        raise ConfigError(
            "taken", absent[0], "the data have no rows of this kind; remove it from taken"
        )
    rows, missing = [], []
    for pair in watched:
        for kind in kinds:
            row = by_key.get((pair.split, pair.example.id, kind))
            if row is not None:
                rows.append(row)
            elif kind not in OF_REJECTED or pair.example.rejected is not None:
                missing.append(Missing.of(pair, kind, "the data have no such row for this pair"))
    return rows, missing


def _check_missing(config: ProbeSetConfig, count: int, missing: Sequence[Missing]) -> None:
    total = count + len(missing)
    if len(missing) > config.most_missing * total:
        reason, times = Counter(row.reason for row in missing).most_common(1)[0]
        raise ConfigError(
            "most_missing",
            config.most_missing,
            f"{len(missing)} of the writer's {total} rows could not be made ({times} times: "
            f"{reason}); run again, which reuses the answers so far, or raise this share",
        )


def _ordered(
    rows: Sequence[ProbeRow], watched: Sequence[Watched], kinds: Sequence[Kind]
) -> list[ProbeRow]:
    by_key = {(row.split, row.pair_id, row.kind): row for row in rows}
    keys = [(pair.split, pair.example.id, kind) for pair in watched for kind in kinds]
    return [by_key[key] for key in keys if key in by_key]
