"""Computes a checkpoint's force map and the tables of it: sums by pair, parts by block, terms."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, by_length
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.data.rows import ProbeRow
from dynolab.data.token_texts import token_string, token_strings
from dynolab.forces.function.derivatives import derivatives_of
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import last_layers, subspace
from dynolab.forces.function.weights import Weights
from dynolab.forces.map.breakdown import Breakdown, block_sums, pair_totals
from dynolab.forces.map.force_map import ForceMap, force_map
from dynolab.forces.map.terms import TokenTerms, response_terms, updating_terms
from dynolab.forces.map.weighted import weighted_responses
from dynolab.forces.step.one_step import one_step
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.objectives import build_objective
from dynolab.objectives.registry import ObjectiveConfig
from dynolab.results.forces import (
    AnalysisFacts,
    BlockPart,
    PairForce,
    ResponseTermsRow,
)
from dynolab.training.step_record import Recorded, RecordedExample, RecordedGroup, StepRecord

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_BATCH_TOKENS = 2_048
"""Padded tokens of one forward where the realised step is compared with first order."""


@dataclass(frozen=True)
class Question:
    """What is observed, which pairs or groups update, by which objective's force and which step.

    `update` is the learning rate of a gradient step or a realised step's frozen map, `at` the
    weights where both sides' derivatives are taken (the policy's own by default), `after` those
    that the realised step ended with. `last_layers`: only these move (`rules.last_layers`).
    """

    policy: PolicyFunction
    tokenizer: PreTrainedTokenizerBase
    observed: Sequence[tuple[ProbeRow, Encoded]]
    updating: Sequence[Recorded]
    objective: ObjectiveConfig
    update: float | FrozenUpdate
    learning_rate: float
    at: Weights | None = None
    after: Weights | None = None
    step: int | None = None
    left_out: int = 0
    last_layers: int | None = None

    @property
    def parameters(self) -> set[str] | None:
        """Names of the parameters that move; None for all that are trained."""
        return None if self.last_layers is None else last_layers(self.policy, self.last_layers)

    def in_metric_of(self, record: StepRecord, update: FrozenUpdate) -> Question:
        """The same pairs at a recorded step's weights, updated by its realised optimizer step."""
        return replace(
            self,
            update=update,
            learning_rate=record.facts.learning_rate,
            at=record.before,
            after=record.after,
            step=record.facts.step,
        )


@dataclass(frozen=True)
class Analysis:
    """A map, its sums by observed answer and updating pair, its parts by block."""

    force_map: ForceMap
    totals: list[PairForce]
    terms: list[ResponseTermsRow]
    facts: AnalysisFacts

    def metrics(self) -> dict[str, float]:
        """`force/<kind>/…`: means over the training pairs' answers, nats per step; and the blocks.

        `predicted` = `from_chosen` + `from_rejected`, each summed over the updating pairs.
        """
        sums: dict[str, dict[str, list[float]]] = defaultdict(dict)
        for row in self.totals:
            if row.split != "train":
                continue
            moved = sums[row.kind].setdefault(row.observed_id, [0.0, 0.0])
            moved[0] += row.from_chosen
            moved[1] += row.from_rejected
        metrics: dict[str, float] = {}
        for kind, answers in sums.items():
            chosen, rejected = np.mean(list(answers.values()), axis=0)
            metrics[f"force/{kind}/from_chosen"] = float(chosen)
            metrics[f"force/{kind}/from_rejected"] = float(rejected)
            metrics[f"force/{kind}/predicted"] = float(chosen + rejected)
        for part in self.facts.blocks:
            metrics[f"force/block/{part.block}/share"] = part.share
            metrics[f"force/block/{part.block}/projection"] = part.projection
        for name, value in self.facts.last_layer.model_dump().items():
            if math.isfinite(value):  # a head that does not move has no direction
                metrics[f"force/last_layer/{name}"] = value
        for name in ("sum_error", "outside"):
            value = getattr(self.facts, name)
            if value is not None:
                metrics[f"force/{name}"] = value
        return metrics


def recorded_examples(
    examples: Sequence[EncodedExample],
    reference: Mapping[str, Mapping[int, Float[Tensor, " _"]]] | None = None,
) -> list[RecordedExample]:
    """Examples with their reference log-probabilities by id and side, if there are any."""

    def scores(name: str, side: int) -> list[float] | None:
        values = (reference or {}).get(name, {}).get(side)
        return None if values is None else values.tolist()

    return [
        RecordedExample(
            id=example.id,
            chosen=example.chosen,
            rejected=example.rejected,
            chosen_reference=scores(example.id, CHOSEN),
            rejected_reference=scores(example.id, REJECTED),
            wins=example.wins,
            weight=example.weight,
            label=example.label,
        )
        for example in examples
    ]


def analyse(question: Question, folder: Path, *, memory_bytes: int | None = None) -> Analysis:
    """Computes the force map into a folder, with its breakdown, and sums it up.

    **Arguments:** `memory_bytes`: as in `force_map`; it bounds the work, not the result.

    **Raises:** `ConfigError`, as `force_map` does.
    """
    computed = force_map(
        question.policy,
        [answer for _, answer in question.observed],
        question.updating,
        build_objective(question.objective),
        update=question.update,
        at=question.at,
        memory_bytes=memory_bytes,
        folder=folder,
        parameters=question.parameters,
        by_block=True,
    )
    return analysis_of(question, computed)


def analysis_of(question: Question, computed: ForceMap) -> Analysis:
    """The analysis of a question whose map, with its blocks, is there."""
    parts = Breakdown.of(computed)
    return Analysis(
        computed,
        _totals(question, computed, parts),
        _terms(question),
        _facts(question, computed, parts),
    )


def _totals(question: Question, computed: ForceMap, parts: Breakdown) -> list[PairForce]:
    sums = pair_totals(computed)
    head = parts.head.cpu().numpy()
    by_side = block_sums(head, computed.observed_offsets, computed.updating_offsets)
    rows = []
    for number, (probe, encoded) in enumerate(question.observed):
        for column, name in enumerate(sums.pairs):
            columns = [n for n, response in enumerate(computed.updating) if response.id == name]
            rows.append(
                PairForce(
                    observed_id=probe.pair_id,
                    split=probe.split,
                    kind=probe.kind,
                    tokens=encoded.response_length,
                    updating_id=name,
                    from_chosen=float(sums.from_chosen[number, column]),
                    from_rejected=float(sums.from_rejected[number, column]),
                    from_head=float(by_side[number, columns].sum()),
                )
            )
    return rows


def _terms(question: Question) -> list[ResponseTermsRow]:
    """Terms of the observed answers with c = 1 and of the updating ones with the objective's c."""
    policy, tokenizer, rows = question.policy, question.tokenizer, []
    encoded = [answer for _, answer in question.observed]
    observed = response_terms(policy, encoded, at=question.at)
    for (probe, answer), terms in zip(question.observed, observed, strict=True):
        tokens = token_strings(answer, tokenizer)
        rows.append(_terms_row("observed", probe.pair_id, probe.kind, tokens, terms))
    objective = build_objective(question.objective)
    for response in updating_terms(policy, question.updating, objective, at=question.at or {}):
        label = response.updating
        tokens = [token_string(token, tokenizer) for token in label.tokens]
        rows.append(_terms_row("updating", label.id, label.side, tokens, response.terms))
    return rows


def _terms_row(
    role: Literal["observed", "updating"],
    name: str,
    kind: str,
    tokens: list[str],
    terms: TokenTerms,
) -> ResponseTermsRow:
    return ResponseTermsRow(
        role=role,
        id=name,
        kind=kind,
        tokens=tokens,
        logp=terms.logp.tolist(),
        a_norm=terms.a_frobenius.tolist(),
        energy=terms.energy.tolist(),
        force_size=terms.force_size.tolist(),
        learning_rate=terms.learning_rate.tolist(),
        g_norm=terms.g_norm.tolist(),
    )


def _unexplained(question: Question) -> float | None:
    """What first order at `at` leaves of the realised step's squared change of all answers.

    None without a realised step, and for a model without forward derivatives.
    """
    policy, at, after = question.policy, question.at, question.after
    if at is None or after is None or not derivatives_of(policy).agrees("forward"):
        return None
    answers = [answer for _, answer in question.observed]
    measured, unexplained = 0.0, 0.0
    for members in by_length(answers, _BATCH_TOKENS):
        batch = policy.batch([answers[member] for member in members])
        change = one_step(policy, at, after, batch, at=at)
        measured += float(batch.sequence_sum(change.measured.double()).square().sum())
        unexplained += float(batch.sequence_sum(change.residual.double()).square().sum())
    return unexplained / measured if measured else None


def _checked_sums(question: Question, computed: ForceMap) -> tuple[float | None, float | None]:
    """The map's sums over its columns against forward-mode derivatives along the step.

    **Returns:** `‖Σ_l F − J d‖/‖J d‖` over the observed tokens, d the step of the parameters that
    move; and `‖J d − J d'‖/‖J d'‖`, d' that of all trained ones, None if all move. Both are None
    for a model without forward derivatives, and for a step that changes nothing.
    """
    policy = question.policy
    if not derivatives_of(policy).agrees("forward"):
        return None, None
    step, moving = _step_direction(question), question.parameters
    within = {name: d for name, d in step.items() if moving is None or name in moving}
    directions = [within] if moving is None else [within, step]
    answers = [answer for _, answer in question.observed]
    lengths = [answer.response_length for answer in answers]
    rows = np.split(computed.force.sum(1, dtype=np.float64), np.cumsum(lengths)[:-1])
    gaps, sizes, along = [0.0, 0.0], [0.0, 0.0], []
    for members in by_length(answers, _BATCH_TOKENS):
        batch = policy.batch([answers[member] for member in members])
        along = list(policy.change_along(question.at or {}, directions, batch).double().cpu())
        summed = torch.from_numpy(np.concatenate([rows[member] for member in members]))
        for number, (change, truth) in enumerate(zip([summed, along[0]], along, strict=False)):
            gaps[number] += float((change - truth).square().sum())
            sizes[number] += float(truth.square().sum())
    shares = [(gap / size) ** 0.5 if size else None for gap, size in zip(gaps, sizes, strict=True)]
    return shares[0], shares[1]


def _step_direction(question: Question) -> Weights:
    """The part of the step that the updating examples' gradient makes, of all trained parameters:
    `Σ_l P ∇ s_l`, one response at a time.
    """
    policy, update = question.policy, question.update
    names = set(update.scale) if isinstance(update, FrozenUpdate) else subspace(policy)
    place = {**policy.weights, **policy.cast(question.at or {})}
    leaves = {name: place[name].detach().requires_grad_() for name in sorted(names)}
    objective = build_objective(question.objective)
    for response in weighted_responses(policy, place, question.updating, objective):
        response.scores(policy, {**place, **leaves}).sum().backward()
    gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    if isinstance(update, FrozenUpdate):
        return {name: g * update.scale[name].to(g) for name, g in gradients.items()}
    return {name: g * update for name, g in gradients.items()}


def _facts(question: Question, computed: ForceMap, parts: Breakdown) -> AnalysisFacts:
    shares, projections, fit = parts.shares(), parts.projections(), parts.last_layer()
    sum_error, outside = _checked_sums(question, computed)
    settings = question.objective.model_dump(exclude={"name"})
    return AnalysisFacts(
        objective=question.objective.name,
        objective_settings=settings,
        learning_rate=question.learning_rate,
        step=question.step,
        dtype=computed.facts.dtype,
        observed_answers=len(computed.observed),
        observed_tokens=computed.force.shape[0],
        updating_pairs=len(question.updating),
        grouped=any(isinstance(example, RecordedGroup) for example in question.updating),
        adapters=subspace(question.policy) != set(question.policy.weights),
        last_layers=question.last_layers,
        updating_tokens=computed.force.shape[1],
        left_out=question.left_out,
        unexplained=_unexplained(question),
        blocks=tuple(
            BlockPart(block=name, share=shares[name], projection=projections[name])
            for name in sorted(shares, key=lambda name: -shares[name])
        ),
        last_layer=fit,
        sum_error=sum_error,
        outside=outside,
    )
