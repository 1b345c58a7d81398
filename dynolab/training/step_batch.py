"""Examples of an optimizer step: as batches for their objective, and as lossless JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from torch import Tensor

from dynolab.data.batches import (
    CHOSEN,
    REJECTED,
    TokenBatch,
    TopTokens,
    Totals,
    collate_examples,
    count_totals,
    responses_of,
)
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.data.groups import Completion, Group, collate_groups, count_group_totals
from dynolab.objectives import Objective


@dataclass(frozen=True)
class ScoredRow:
    """A row of answers with the reference's log-probabilities by side, in nats.

    `reference` is empty for objectives without a reference. `dose` is the factor on the push of
    every rejected token, where the step has chosen it; `drift` is the step's (`TokenBatch`).
    """

    encoded: EncodedExample
    reference: Mapping[int, Float[Tensor, " response"]] = field(default_factory=dict)
    dose: Float[Tensor, " rejected"] | None = None
    drift: float | None = None

    @property
    def id(self) -> str:
        """The row's id."""
        return self.encoded.id


StepExample = ScoredRow | Group


def count_step(examples: Sequence[StepExample], sides: Sequence[int]) -> Totals:
    """Counts the global denominators of one optimizer step on these examples."""
    rows, groups = _split_kinds(examples)
    return (
        count_totals([row.encoded for row in rows], sides) if rows else count_group_totals(groups)
    )


def collate_step(
    examples: Sequence[StepExample],
    objective: Objective,
    totals: Totals,
    pad_id: int,
    *,
    temperature: float = 1.0,
) -> TokenBatch:
    """Collates examples of a step with their objective's sides, references and denominators.

    **Arguments:**

    - `totals`: the denominators of the whole step (`count_step`).
    - `temperature`: temperature at which groups were sampled and are trained.
    """
    rows, groups = _split_kinds(examples)
    if groups:
        return collate_groups(groups, pad_id, totals, temperature=temperature)
    batch = collate_examples([row.encoded for row in rows], pad_id, objective.sides, totals)
    batch = replace(batch, dose=_doses(rows), drift=rows[0].drift)
    if not objective.needs_reference:
        return batch
    parts = []
    for row in rows:
        parts += [row.reference.get(side) for side, _ in responses_of(row.encoded, objective.sides)]
    present = [part for part in parts if part is not None]
    return replace(batch, reference=torch.cat(present) if len(present) == len(parts) else None)


def _doses(rows: Sequence[ScoredRow]) -> Float[Tensor, " tokens"] | None:
    """The dose of every token of pairs, 1 on chosen ones; None unless all rows have doses."""
    parts: list[Tensor] = []
    for row in rows:
        if row.dose is None:
            return None
        parts += [row.dose.new_ones(row.encoded.chosen.response_length), row.dose]
    return torch.cat(parts)


def _split_kinds(examples: Sequence[StepExample]) -> tuple[list[ScoredRow], list[Group]]:
    """Splits examples into rows and groups; one of the lists is empty."""
    rows = [example for example in examples if isinstance(example, ScoredRow)]
    return rows, [example for example in examples if isinstance(example, Group)]


class _Recorded(BaseModel):
    # JSON keeps infinities (the log-probability of an impossible token).
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class RecordedExample(_Recorded):
    """A row of the recorded batch, as tokens, with the reference's log-probabilities.

    `rejected_dose`: the factor on the push of each rejected token, where the step chose it.
    """

    temperature: ClassVar[float] = 1.0

    id: str
    chosen: Encoded
    rejected: Encoded | None = None
    chosen_reference: list[float] | None = None
    rejected_reference: list[float] | None = None
    wins: tuple[float, float] | None = None
    rejected_dose: list[float] | None = Field(None, exclude_if=lambda dose: dose is None)
    weight: float | None = Field(None, exclude_if=lambda weight: weight is None)
    label: bool | None = Field(None, exclude_if=lambda label: label is None)
    drift: float | None = Field(None, exclude_if=lambda drift: drift is None)

    def encoded(self) -> EncodedExample:
        """Converts to the example that collation takes."""
        return EncodedExample(
            self.id, self.chosen, self.rejected, self.wins, self.weight, self.label
        )

    def responses(self, sides: Sequence[int]) -> list[tuple[int, Encoded]]:
        """The responses trained on with their sides, in batch order.

        **Raises:** `ConfigError` if a side has no response.
        """
        return responses_of(self.encoded(), sides)

    def named(self) -> dict[str, Encoded]:
        """Every response by its name in the example."""
        responses = {"chosen": self.chosen, "rejected": self.rejected}
        return {name: encoded for name, encoded in responses.items() if encoded is not None}

    def scored(self, dtype: torch.dtype) -> ScoredRow:
        """Converts to the example that a step takes."""
        logps = {CHOSEN: self.chosen_reference, REJECTED: self.rejected_reference}
        reference = {
            side: torch.tensor(values, dtype=dtype)
            for side, values in logps.items()
            if values is not None
        }
        dose = None if self.rejected_dose is None else torch.tensor(self.rejected_dose, dtype=dtype)
        return ScoredRow(self.encoded(), reference, dose, self.drift)


class RecordedTop(_Recorded):
    """The likeliest tokens under the sampling policy (`TopTokens`)."""

    token: list[list[int]]
    logp: list[list[float]]
    entropy: list[float]


class RecordedCompletion(_Recorded):
    """A sampled response with its objective's per-token inputs (`Completion`)."""

    encoded: Encoded
    advantage: list[float]
    old: list[float] | None = None
    reference: list[float] | None = None
    top: RecordedTop | None = None
    anchor: list[float] | None = Field(None, exclude_if=lambda anchor: anchor is None)
    dose: list[float] | None = Field(None, exclude_if=lambda dose: dose is None)

    @property
    def side(self) -> int:
        """REJECTED if the completion is pushed down, as in `Completion.side`."""
        return REJECTED if min(self.advantage) < 0 else CHOSEN


class RecordedGroup(_Recorded):
    """A group of the recorded batch: the completions of one prompt."""

    id: str
    temperature: float = 1.0
    completions: tuple[RecordedCompletion, ...]

    def responses(self, sides: Sequence[int]) -> list[tuple[int, Encoded]]:
        """The completions with their sides, in batch order."""
        return [
            (completion.side, completion.encoded)
            for completion in self.completions
            if completion.side in sides
        ]

    def named(self) -> dict[str, Encoded]:
        """Every response by its name in the example."""
        return {
            f"completions[{n}]": completion.encoded for n, completion in enumerate(self.completions)
        }

    def scored(self, dtype: torch.dtype) -> Group:
        """Converts to the group that a step takes."""

        def tensor(values: list[float] | list[list[float]] | None) -> Any:
            return None if values is None else torch.tensor(values, dtype=dtype)

        return Group(
            self.id,
            tuple(
                Completion(
                    completion.encoded,
                    tensor(completion.advantage),
                    tensor(completion.old),
                    tensor(completion.reference),
                    None
                    if completion.top is None
                    else TopTokens(
                        torch.tensor(completion.top.token),
                        tensor(completion.top.logp),
                        tensor(completion.top.entropy),
                    ),
                    tensor(completion.anchor),
                    tensor(completion.dose),
                )
                for completion in self.completions
            ),
        )


Recorded = RecordedExample | RecordedGroup
_ADAPTER: TypeAdapter[Recorded] = TypeAdapter(Recorded)


def read_recorded(line: bytes) -> Recorded:
    """Parses an example from its line of JSON."""
    return _ADAPTER.validate_json(line)


def recorded(example: StepExample, sides: Sequence[int], temperature: float = 1.0) -> Recorded:
    """Converts an example of a step to its record, with only the sides trained on."""
    if isinstance(example, Group):
        return _group(example, temperature)
    encoded, reference = example.encoded, example.reference
    return RecordedExample(
        id=encoded.id,
        chosen=encoded.chosen,
        rejected=encoded.rejected if REJECTED in sides else None,
        chosen_reference=_listed(reference.get(CHOSEN)),
        rejected_reference=_listed(reference.get(REJECTED)),
        wins=encoded.wins,
        weight=encoded.weight,
        label=encoded.label,
        rejected_dose=_listed(example.dose),
        drift=example.drift,
    )


def _group(group: Group, temperature: float) -> RecordedGroup:
    return RecordedGroup(
        id=group.id,
        temperature=temperature,
        completions=tuple(
            RecordedCompletion(
                encoded=completion.encoded,
                advantage=completion.advantage.tolist(),
                old=_listed(completion.old),
                reference=_listed(completion.reference),
                top=None
                if completion.top is None
                else RecordedTop(
                    token=completion.top.token.tolist(),
                    logp=completion.top.logp.tolist(),
                    entropy=completion.top.entropy.tolist(),
                ),
                anchor=_listed(completion.anchor),
                dose=_listed(completion.dose),
            )
            for completion in group.completions
        ),
    )


def _listed(values: Tensor | None) -> list[float] | None:
    return None if values is None else values.tolist()
