"""What is computed when asked for: lines and token maps of one recorded step, or of a like one.

A question is put by changing the record: a plain gradient step in place of the optimizer's
(`StepRecord.as_gradient_step`), another objective (`under`), a pair that was not in the batch
(`with_pair`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from dynolab.costs.memory import ledger_copies
from dynolab.data.batches import REJECTED
from dynolab.data.encode import Encoded
from dynolab.data.rows import json_lines
from dynolab.errors import ConfigError
from dynolab.explorer.lines import TOGETHER, Lines
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.ledger.functional import Functional, slopes_of
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.responses import gradients_of, step_responses
from dynolab.forces.ledger.step_account import StepMade, entries_of, step_made
from dynolab.forces.map.costs import free_bytes
from dynolab.forces.map.token_map import build_token_map
from dynolab.forces.step.one_step import midpoint
from dynolab.forces.step.split import UpdateSplit, split_step
from dynolab.objectives import build_objective
from dynolab.objectives.registry import ObjectiveConfig
from dynolab.results.study import TokenMap
from dynolab.training.step_batch import RecordedExample
from dynolab.training.step_record import StepFacts, StepRecord, size_of_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GRADIENT_BYTES = 2**28
"""Of the gradients of as many answers as are watched at once."""

Metric = Literal["optimizer", "gradient"]
"""optimizer: the step that training took; gradient: a plain one of the same learning rate."""


@dataclass(frozen=True)
class Asked:
    """Which steps are asked: in which metric, and under which objective if not their own.

    `without`: pairs, by id, of which it is asked what the step would have lacked without them.
    """

    metric: Metric = "optimizer"
    objective: ObjectiveConfig | None = None
    without: tuple[str, ...] = ()


def under(record: StepRecord, objective: ObjectiveConfig) -> StepRecord:
    """The same batch under another objective.

    **Raises:** `ConfigError` if the record lacks what that objective reads.
    """
    built = build_objective(objective)
    for example in record.examples:
        example.responses(built.sides)
        if built.needs_reference and getattr(example, "chosen_reference", None) is None:
            raise ConfigError(
                "objective",
                objective.name,
                "needs a reference, which this step has not recorded; choose another objective",
            )
    return record.changed(objective=objective)


def with_pair(record: StepRecord, pair: RecordedExample) -> StepRecord:
    """A batch of the same size with a pair in it, in place of the first one if it was not."""
    if any(example.id == pair.id for example in record.examples):
        return record
    return record.changed(examples=(pair, *record.examples[1:]))


@dataclass(frozen=True)
class AskedStep:
    """A recorded step, or one like it, that questions are put to.

    Derivatives of answers are the mean of both ends of the step, or at its midpoint, so that what
    they leave of the measured change is of third order.
    """

    record: StepRecord
    policy: PolicyFunction = field(repr=False)
    without: tuple[str, ...] = ()

    def lines(self, answers: Sequence[Encoded]) -> Lines:
        """What every response of the batch did to each answer."""
        at_once = max(1, GRADIENT_BYTES // self._made.gradients[0].nbytes)
        chunks = [answers[start : start + at_once] for start in range(0, len(answers), at_once)]
        accounts = [self._account(chunk) for chunk in chunks]
        labels = self._made.labels
        return Lines(
            step=np.full(len(labels), self.record.facts.step),
            pair=np.array([label.id for label in labels]),
            side=np.array([label.side for label in labels]),
            nats=np.concatenate([account[0] for account in accounts], axis=1),
            measured=np.concatenate([account[1] for account in accounts]),
            apart={
                name: np.concatenate([account[2][name] for account in accounts])
                for name in accounts[0][2]
            },
            left_out=np.concatenate([account[3] for account in accounts]),
        )

    def log_probs(self, answer: Encoded) -> tuple[float, float]:
        """log π of an answer before and after the step, in nats."""
        batch = self.policy.batch([answer])
        with torch.no_grad():
            before, after = (
                float(self.policy.logps(self.policy.cast(weights), batch).double().sum())
                for weights in (self.record.before, self.record.after)
            )
        return before, after

    def on_tokens(self, answer: Encoded) -> Float[ndarray, "tokens 2"]:
        """Push on every token of an answer through all chosen and all rejected responses, nats."""
        batch = self.policy.batch([answer])
        place = midpoint(self.record.before, self.record.after)
        sides = [self._split.from_chosen, self._split.from_rejected]
        with torch.no_grad():
            pushes = self.policy.change_along(place, sides, batch)
        return np.asarray(pushes.double().cpu().numpy()).T

    def token_map(
        self,
        pair: str,
        answer: Encoded,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str,
        kind: str,
    ) -> TokenMap:
        """Which token of a pair of the batch pushed which token of the answer of this name."""
        return build_token_map(
            self.record,
            self.policy,
            tokenizer,
            stage=self.record.facts.objective.name,
            updating_id=pair,
            observed_id=name,
            observed_kind=kind,
            observed=answer,
            step=self._split,
        )

    def _account(
        self, answers: Sequence[Encoded]
    ) -> tuple[ndarray, ndarray, dict[str, ndarray], ndarray]:
        """Lines, the measured change, what else moved the answers, and the group left out."""
        functionals = [Functional.mean(str(n), [answer]) for n, answer in enumerate(answers)]
        start, end = (
            slopes_of(functionals, self._route, weights)
            for weights in (self.record.before, self.record.after)
        )
        account, _ = entries_of(self._made, start, end)
        apart = {
            TOGETHER: account.together,
            "weight decay": account.decay,
            "earlier momentum": account.carried_in,
        }
        nothing = torch.zeros_like(account.together)
        left_out = account.groups.get(_LEFT_OUT, nothing)
        return (
            _array(account.lines),
            _array(account.measured),
            {name: _array(values) for name, values in apart.items()},
            _array(left_out),
        )

    @cached_property
    def _made(self) -> StepMade:
        responses = step_responses(self.record, self._route)
        return step_made(self.record, self.policy, responses, {_LEFT_OUT: self.without})

    @cached_property
    def _route(self) -> GroupedGradients:
        return gradients_of(self.record, self.policy)

    @cached_property
    def _split(self) -> UpdateSplit:
        return split_step(self.record, self.policy)


_LEFT_OUT = "left out"


def _array(values: Tensor) -> ndarray:
    return np.asarray(values.double().cpu().numpy())


def check_room(record: Path, device: torch.device) -> None:
    """Raises `ConfigError` unless a recorded step's lines to one answer fit beside all else.

    **Arguments:** `record`: the step's folder in a training's result, without its tensors.
    """
    facts = StepFacts.model_validate_json((record / "step.json").read_text())
    sides = 2 if REJECTED in build_objective(facts.objective).sides else 1
    responses = sides * sum(1 for _ in json_lines(record / "batch.jsonl"))
    weights, free = size_of_weights(record), free_bytes(device)
    copies = ledger_copies(facts.optimizer, functionals=1, responses=responses)
    if copies * weights > free:
        raise ConfigError(
            "step",
            facts.step,
            f"takes about {copies * weights / 1e9:.1f} GB here: {copies} copies of the "
            f"{weights / 1e9:.1f} GB of trained weights, for a batch of {responses} answers; "
            f"{free / 1e9:.1f} GB are free. Open the study on a machine with more memory, or "
            "train it with a smaller batch_size or LoRA; what its ledger has stored is shown here",
        )
