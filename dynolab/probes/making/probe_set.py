"""A whole probe set: any kinds, each from whom can make it, in one order and with its flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.probes.build import Watched, rows_from_data, watched_pairs
from dynolab.data.probes.flags import flag_rows
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
from dynolab.data.probes.missing import Missing
from dynolab.data.probes.overlap import TrainingTexts, disjoint
from dynolab.data.rows import Example, ProbeRow
from dynolab.endpoint import Endpoint, EndpointConfig
from dynolab.endpoint.client import OnProgress, ignore_progress
from dynolab.errors import ConfigError
from dynolab.probes.making.policy import Policy, rows_from_policy
from dynolab.probes.making.written import rows_from_writer
from dynolab.rollouts.sample import SampleConfig

AnyKind = TypeVar("AnyKind", bound=str)


class ProbeSetConfig(BaseModel):
    """Which answers a probe set holds, and how those are made that pairs alone do not give."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kinds: tuple[Kind, ...] = Field(
        DATA_KINDS,
        description="From the data: chosen, rejected, irr_train, irr_test, random_permute, "
        "random_nonhum. From the untrained policy: chosen_initial, chosen_selfr. From the writer: "
        "chosen_gptsemantic, reject_gptsemantic, chosen_gptformat, reject_gptformat, irr_hum.",
    )
    taken: tuple[Kind, ...] = Field(
        (),
        description="Kinds among these whose rows the data have already and that are taken over: "
        "the built-in world's exact ones, a probe file's stored ones.",
    )
    pairs: int = Field(100, ge=1, description="Pairs of either part that are watched.")
    temperature: float = Field(1.0, ge=0, description="Of the policy's own answers.")
    max_new_tokens: int = Field(128, ge=1, description="Longest answer of the policy.")
    stop: tuple[str, ...] = Field(
        ("\n\nHuman:",), description="Texts that end the policy's answers: the next human turn."
    )
    sample_batch_size: int = Field(64, ge=1, description="The policy's answers side by side.")
    writer: EndpointConfig | None = Field(
        None, description="The judge-class model that rephrases; the last five kinds need it."
    )
    most_missing: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Share of the writer's rows that may stay unanswered. Above it nothing is "
        "committed, and the answers so far are kept for the next run.",
    )
    seed: int = Field(0, ge=0, description="Of draws and samples.")

    @model_validator(mode="after")
    def _can_be_made(self) -> ProbeSetConfig:
        for field in ("kinds", "taken"):
            twice = [kind for kind, count in Counter(getattr(self, field)).items() if count > 1]
            if twice:
                raise ConfigError(field, twice[0], "name every kind once")
        if "chosen" not in self.kinds:
            raise ConfigError(
                "kinds", list(self.kinds), "add chosen: y* and the gap are read along it"
            )
        if strange := [kind for kind in self.taken if kind not in self.kinds]:
            raise ConfigError("taken", strange[0], "is none of the kinds; name it there, too")
        if self.writer_kinds and self.writer is None:
            raise ConfigError(
                "writer",
                None,
                f"{self.writer_kinds[0]} needs one: give writer.model, take it over from the data "
                "(taken), or leave it out",
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
        """How the policy answers."""
        return SampleConfig(
            temperature=self.temperature,
            max_new_tokens=self.max_new_tokens,
            stop=self.stop,
            batch_size=self.sample_batch_size,
            seed=self.seed,
        )


@dataclass(frozen=True)
class ProbeSet:
    """Rows, pair after pair with the kinds in their order; and the rows that are not there."""

    rows: list[ProbeRow]
    missing: list[Missing]

    @property
    def counts(self) -> dict[str, float]:
        """Rows, missing ones and every flag, each with how often."""
        flags = Counter(flag for row in self.rows for flag in row.flags)
        sizes = {"probes/rows": len(self.rows), "probes/missing": len(self.missing)}
        named = {f"probes/flag_{name}": count for name, count in sorted(flags.items())}
        return {name: float(count) for name, count in (sizes | named).items()}


def build_probe_set(
    config: ProbeSetConfig,
    train: Sequence[Example],
    heldout: Sequence[Example],
    *,
    given: Sequence[ProbeRow] = (),
    policy: Policy | None = None,
    endpoint: Endpoint | None = None,
    on_progress: OnProgress = ignore_progress,
) -> ProbeSet:
    """Probe rows of the first training pairs and of the first held-out ones that training misses.

    Every response has one leading space, or none where it is empty; encoding ends each with the
    end-of-sequence: kinds differ in their words alone.

    **Arguments:**

    - `train`: every row that training will see.
    - `heldout`: others; those of which training sees a prompt or an answer are left out.
    - `given`: rows that exist already; those of `config.taken` are taken over.
    - `policy`: the model before training, where kinds need it; with it rows are also flagged for
      what its tokenizer makes of them.
    - `endpoint`: the writer, where kinds need it, made with `usable=has_text`.
    - `on_progress(done, of)`: called as the writer's answers come.

    **Raises:** `ConfigError` for what cannot be made, and where more than `config.most_missing`
    of the writer's rows are missing; as `Endpoint.ask`.
    """
    fresh = disjoint(heldout, train)
    watched = watched_pairs(train, fresh, config.pairs)
    rows = rows_from_data(watched, train, fresh, kinds=config.data_kinds, seed=config.seed)
    taken, missing = _taken(config.taken, watched, given)
    rows += taken
    if config.policy_kinds:
        if policy is None:
            raise ConfigError("kinds", config.policy_kinds[0], "needs the untrained policy")
        made, lost = rows_from_policy(
            policy, watched, kinds=config.policy_kinds, sampling=config.sampling
        )
        rows, missing = rows + made, missing + lost
    if config.writer_kinds:
        if endpoint is None:
            raise ConfigError("kinds", config.writer_kinds[0], "needs the writer's endpoint")
        made, lost = rows_from_writer(
            endpoint, watched, kinds=config.writer_kinds, on_progress=on_progress
        )
        _check_missing(config, len(made), lost)
        rows, missing = rows + made, missing + lost
    tokenizer = None if policy is None else policy.tokenizer
    flagged = flag_rows(rows, [pair.example for pair in watched], TrainingTexts(train), tokenizer)
    return ProbeSet(_ordered(flagged, watched, config.kinds), missing)


def _taken(
    kinds: Sequence[Kind], watched: Sequence[Watched], given: Sequence[ProbeRow]
) -> tuple[list[ProbeRow], list[Missing]]:
    there = {(row.split, row.pair_id, row.kind): row for row in given}
    if absent := [kind for kind in kinds if not any(kind == key[2] for key in there)]:
        raise ConfigError("taken", absent[0], "the data bring no rows of this kind; have it made")
    rows, missing = [], []
    for pair in watched:
        for kind in kinds:
            row = there.get((pair.split, pair.example.id, kind))
            if row is not None:
                rows.append(row)
            elif kind not in OF_REJECTED or pair.example.rejected is not None:
                missing.append(Missing.of(pair, kind, "the data bring no such row for this pair"))
    return rows, missing


def _check_missing(config: ProbeSetConfig, made: int, missing: Sequence[Missing]) -> None:
    wanted = made + len(missing)
    if len(missing) > config.most_missing * wanted:
        reason, times = Counter(row.reason for row in missing).most_common(1)[0]
        raise ConfigError(
            "most_missing",
            config.most_missing,
            f"{len(missing)} of the writer's {wanted} rows could not be made ({times} times: "
            f"{reason}); run it again, its answers so far are kept, or raise this share",
        )


def _ordered(
    rows: Sequence[ProbeRow], watched: Sequence[Watched], kinds: Sequence[Kind]
) -> list[ProbeRow]:
    by_name = {(row.split, row.pair_id, row.kind): row for row in rows}
    names = [(pair.split, pair.example.id, kind) for pair in watched for kind in kinds]
    return [by_name[name] for name in names if name in by_name]
