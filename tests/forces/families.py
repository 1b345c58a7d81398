"""One small random model of every supported family, and the truth about its force map."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from dynolab.data.batches import CHOSEN, TokenBatch, collate, count_totals
from dynolab.data.encode import Encoded
from dynolab.forces import ForceMap, FrozenUpdate, PolicyFunction, Weights, force_map
from dynolab.forces.map.force_map import pose
from dynolab.forces.map.weighted import scores_along
from dynolab.forces.step.split import objective_batch
from dynolab.likelihood.token_logps import token_logps, top_tokens
from dynolab.objectives import DPO, DPOConfig, Objective, read_logps
from dynolab.objectives.policy_gradient import ClippedConfig
from dynolab.training.step_batch import RecordedCompletion
from dynolab.training.step_record import Recorded, RecordedExample, RecordedGroup
from tests.forces.small_models import (
    COMMON,
    central_difference,
    encoded,
    llama,
    neox,
    pairs,
    with_reference,
)

GROUPED = {**COMMON, "num_key_value_heads": 2}


FAMILIES = {
    "gpt_neox": neox,
    "llama_tied": llama,
    "llama_untied": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED, tie_word_embeddings=False)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(**{name: own for name, own in COMMON.items() if name != "intermediate_size"})
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**GROUPED, tie_word_embeddings=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**GROUPED)),
}


def build(family: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    torch.manual_seed(0)
    return FAMILIES[family]().to(dtype).eval()


OBSERVED = (encoded(1, 4, 6), encoded(2, 5, 3))
ETA = 0.1
BETA = 0.1
DPO_LOSS = DPO(DPOConfig(beta=BETA))


@dataclass(frozen=True)
class Case:
    """A policy, and one step's batch of pairs with a reference."""

    policy: PolicyFunction
    examples: Sequence[RecordedExample]

    def force_map(
        self,
        *,
        objective: Objective = DPO_LOSS,
        update: float | FrozenUpdate = ETA,
        observed: Sequence[Encoded] = OBSERVED,
        examples: Sequence[Recorded] | None = None,
        temperature: float = 1.0,
        **more: Any,
    ) -> ForceMap:
        """The force map of the batch, or of other examples, on watched responses."""
        updating = self.updating(objective, temperature) if examples is None else examples
        return force_map(self.policy, observed, updating, objective, update=update, **more)

    def map(self, **asked: Any) -> Tensor:
        """The forces of `force_map`."""
        return torch.tensor(self.force_map(**asked).force)

    def map_by_tokens(
        self,
        *,
        objective: Objective = DPO_LOSS,
        update: float | FrozenUpdate = ETA,
        temperature: float = 1.0,
        parameters: Collection[str] | None = None,
    ) -> Tensor:
        """The same map column by column: a VJP of every updating token, a JVP of all observed."""
        problem = pose(
            self.policy,
            OBSERVED,
            self.updating(objective, temperature),
            objective,
            update=update,
            at=None,
            parameters=parameters,
        )
        gradients, columns = problem.gradients, []
        leaves = {
            name: gradients.at[name].detach().requires_grad_() for name in sorted(gradients.moving)
        }
        for response in problem.updating:
            for score in response.scores(self.policy, {**gradients.at, **leaves}):
                gradient = torch.autograd.grad(
                    score, list(leaves.values()), retain_graph=True, materialize_grads=True
                )
                direction = {
                    name: g if gradients.scale is None else gradients.scale[name] * g
                    for name, g in zip(leaves, gradient, strict=True)
                }
                found = scores_along(self.policy, gradients.at, [direction], problem.observed)
                columns.append(found[0])
        return problem.rate * torch.stack(columns, dim=1)

    def batch(self, objective: Objective, temperature: float = 1.0) -> TokenBatch:
        """The examples as a step's batch, with all that some loss reads.

        To a policy gradient a pair is a group of two completions, sampled by a policy that differs
        a little from the one at hand.
        """
        totals = count_totals([example.encoded() for example in self.examples], objective.sides)
        batch = objective_batch(self.examples, objective, totals, self.policy)
        batch = replace(batch, temperature=temperature)
        logits = self.policy.logits({}, batch)
        drift = 0.1 * torch.sin(torch.arange(len(logits), dtype=logits.dtype))
        top = top_tokens(logits, batch, 3)
        return replace(
            batch,
            advantage=torch.where(batch.token_side == CHOSEN, 0.9, -0.6).to(logits),
            old=token_logps(logits, batch) + drift,
            top=replace(top, logp=top.logp + drift[:, None]),
        )

    def updating(self, objective: Objective, temperature: float = 1.0) -> Sequence[Recorded]:
        """The examples as a step on them is recorded: `batch`'s groups to a policy gradient."""
        if not isinstance(getattr(objective, "config", None), ClippedConfig):
            return self.examples
        batch = self.batch(objective, temperature)
        completions = []
        for number in range(len(batch.side)):
            own = batch.sequence == number
            example = self.examples[int(batch.example[number])]
            encoded = example.named()["chosen" if batch.side[number] == CHOSEN else "rejected"]
            facts = {"advantage": batch.advantage, "old": batch.old, "reference": batch.reference}
            completions.append(
                RecordedCompletion(
                    encoded=encoded,
                    top={name: v[own].tolist() for name, v in vars(batch.top).items()},
                    **{name: None if v is None else v[own].tolist() for name, v in facts.items()},
                )
            )
        return [
            RecordedGroup(
                id=example.id,
                temperature=temperature,
                completions=tuple(
                    completion
                    for completion, of in zip(completions, batch.example.tolist(), strict=True)
                    if of == number
                ),
            )
            for number, example in enumerate(self.examples)
        ]

    def descent(self, objective: Objective, temperature: float = 1.0) -> dict[str, Tensor]:
        """The change of the weights −η ∇loss, by autograd of the loss that trains."""
        batch = self.batch(objective, temperature)
        leaves = {name: w.clone().requires_grad_() for name, w in self.policy.weights.items()}
        logps = read_logps(objective, self.policy.logits(leaves, batch), batch)
        loss = objective.loss(logps, batch)
        return plain_descent(
            dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        )


def case_of(model: nn.Module, dtype: torch.dtype = torch.float64, *, count: int = 2) -> Case:
    """A model with the first pairs."""
    return Case(PolicyFunction(model.eval(), dtype), with_reference(model, pairs(count)))


def case(family: str, dtype: torch.dtype = torch.float64, *, count: int = 2) -> Case:
    return case_of(build(family, dtype), dtype, count=count)


def plain_descent(gradient: Weights) -> dict[str, Tensor]:
    return {name: -ETA * g for name, g in gradient.items()}


def dpo_columns_by_differences(
    policy: PolicyFunction,
    observed: Encoded,
    example: RecordedExample,
    *,
    along: Callable[[Weights], Weights] = plain_descent,
    at: Weights | None = None,
    place: Weights | None = None,
    pairs: int = 1,
) -> Tensor:
    """A step on one loss token at a time, by forwards of moved weights alone.

    The gradient is autograd's of a dense log-softmax at `at`, c_l is written out for DPO on so
    many pairs, and the push is a central difference at `place`: nothing of it is shared with the
    engine.
    """
    start = policy.weights if at is None else at
    rates = dpo_rates(policy, start, example) / pairs
    batch = collate([observed], 0)
    gradients = [
        gradient
        for one in (example.chosen, example.rejected)
        for gradient in _token_gradients(policy, start, one)
    ]
    return torch.stack(
        [
            central_difference(
                policy,
                start if place is None else place,
                along({name: -rate * g for name, g in gradient.items()}),
                batch,
            )
            for rate, gradient in zip(rates, gradients, strict=True)
        ],
        dim=1,
    )


def dpo_rows_by_differences(
    policy: PolicyFunction, observed: Encoded, example: RecordedExample
) -> Tensor:
    """The weights moved along one observed token's gradient at a time, under plain descent.

    The kernel is symmetric: what l's step does to m is what m's gradient does to l, times η c_l.
    """
    batch = collate([example.chosen, example.rejected], 0)
    rows = [
        central_difference(policy, policy.weights, gradient, batch)
        for gradient in _token_gradients(policy, policy.weights, observed)
    ]
    return ETA * torch.stack(rows) * dpo_rates(policy, policy.weights, example)


def dpo_rates(policy: PolicyFunction, at: Weights, example: RecordedExample) -> Tensor:
    """`+β(1 − σ)` on chosen and `−β(1 − σ)` on rejected tokens."""
    with torch.no_grad():
        chosen, rejected = (
            dense_logps(policy, at, one).sum() - sum(reference)
            for one, reference in (
                (example.chosen, example.chosen_reference),
                (example.rejected, example.rejected_reference),
            )
        )
    rate = BETA * (1 - torch.sigmoid(BETA * (chosen - rejected)))
    lengths = example.chosen.response_length, example.rejected.response_length
    return torch.cat([rate.expand(lengths[0]), -rate.expand(lengths[1])])


def _token_gradients(policy: PolicyFunction, at: Weights, one: Encoded) -> list[Weights]:
    leaves = {name: w.requires_grad_() for name, w in policy.cast(at).items()}
    return [
        dict(zip(leaves, gradient, strict=True))
        for logp in dense_logps(policy, leaves, one)
        for gradient in [torch.autograd.grad(logp, list(leaves.values()), retain_graph=True)]
    ]


def dense_logps(policy: PolicyFunction, weights: Weights, one: Encoded) -> Tensor:
    logits = policy.logits(weights, collate([one], 0))
    dense = logits - logits.exp().sum(-1, keepdim=True).log()
    return torch.stack([dense[n, t] for n, t in enumerate(one.ids[one.prompt_length :])])
