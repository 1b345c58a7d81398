"""Tiny models, batches and really trained steps for the force tests."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import torch
from pydantic import BaseModel
from torch import Tensor, nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded
from dynolab.data.rows import ProbeRow
from dynolab.forces import PolicyFunction, View, Weights
from dynolab.forces.step.one_step import norm_of
from dynolab.forces.step.split import step_totals
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import (
    DPOConfig,
    ObjectiveConfig,
    build_objective,
    read_logps,
)
from dynolab.training.config import EngineConfig, OptimizerConfig, TrainConfig
from dynolab.training.engine import PlainEngine, clip_factor, learning_rate
from dynolab.training.step_batch import collate_step
from dynolab.training.step_record import (
    SECOND_MOMENT_AFTER,
    Recorded,
    RecordedExample,
    StepFacts,
    StepRecord,
)
from tests.objectives.registered import REQUIRED

VOCABULARY = 50
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "sdpa",
    "initializer_range": 0.15,
}


def neox(seed: int = 0, dtype: torch.dtype = torch.float64) -> GPTNeoXForCausalLM:
    torch.manual_seed(seed)
    return GPTNeoXForCausalLM(GPTNeoXConfig(**COMMON)).to(dtype).eval()


def llama(seed: int = 0, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """Grouped-query attention and tied embeddings."""
    torch.manual_seed(seed)
    config = LlamaConfig(**COMMON, num_key_value_heads=2, tie_word_embeddings=True)
    return LlamaForCausalLM(config).to(dtype).eval()


def encoded(seed: int, prompt: int = 4, response: int = 5) -> Encoded:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (prompt + response,), generator=generator)
    return Encoded(tuple(ids.tolist()), prompt)


def pair(seed: int, prompt: int = 4, chosen: int = 5, rejected: int = 4) -> RecordedExample:
    """A pair with one prompt and answers of unlike lengths, without reference yet."""
    first, second = encoded(seed, prompt, chosen), encoded(seed + 1000, prompt, rejected)
    ids = first.ids[:prompt] + second.ids[prompt:]
    return RecordedExample(
        id=f"pair-{seed}", chosen=first, rejected=Encoded(ids, prompt), wins=(0.8, 0.3)
    )


def pairs(count: int) -> list[RecordedExample]:
    return [
        pair(seed, prompt=3 + seed % 3, chosen=4 + seed % 2, rejected=3 + seed % 3)
        for seed in range(count)
    ]


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def direction(module: nn.Module, size: float, seed: int = 5) -> dict[str, Tensor]:
    """A random change of a module's weights."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: size * torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w.dtype)
        for name, w in weights(module).items()
    }


@torch.no_grad()
def central_difference(
    policy: PolicyFunction,
    at: Weights,
    change: Weights,
    batch: TokenBatch,
    *,
    view: View | None = None,
) -> Tensor:
    """`[log π(θ + h d) − log π(θ − h d)] / 2h`: the derivative along d by forwards only.

    h makes the perturbation `ε^{1/3} ‖θ‖`, which balances truncation O(h²) against rounding
    O(ε/h): about 1e-8 relative in float64, 1e-3 in float32.
    """
    place, d = policy.cast(at), policy.cast(change)
    size = norm_of(place[name] for name in d)
    h = float(torch.finfo(policy.dtype).eps ** (1 / 3) * size / norm_of(d.values()))
    forth, back = (
        policy.observed(place | {name: place[name] + s * h * d[name] for name in d}, batch, view)
        for s in (1, -1)
    )
    return (forth - back) / (2 * h)


def relative(value: Tensor, truth: Tensor) -> float:
    return float((value - truth).norm() / truth.norm())


@torch.no_grad()
def with_reference(model: nn.Module, examples: Sequence[RecordedExample]) -> list[RecordedExample]:
    """The examples with log-probabilities of a reference that differs from the policy a little."""

    def score(sequence: Encoded) -> list[float]:
        batch = collate([sequence], 0)
        logps = token_logps(ResponseLogits(model)(batch), batch)
        return (logps + 0.3 * torch.sin(torch.arange(len(logps)))).tolist()

    return [
        example.model_copy(
            update={
                "chosen_reference": score(example.chosen),
                "rejected_reference": None if example.rejected is None else score(example.rejected),
            }
        )
        for example in examples
    ]


@dataclass
class Trained:
    """A model and the records of real optimizer steps on it, in their order."""

    model: nn.Module
    records: list[StepRecord]


def train_steps(
    model: nn.Module,
    config: TrainConfig,
    examples: Sequence[RecordedExample],
    *,
    steps: int = 3,
) -> Trained:
    """Steps on the same examples, at rates that rise to the config's."""
    config = config.model_copy(update={"warmup_steps": steps})
    return Trained(model, list(train_batches(model, config, [examples] * steps)))


def train_batches(
    model: nn.Module,
    config: TrainConfig,
    batches: Sequence[Sequence[Recorded]],
    without: Collection[str] = (),
) -> Iterator[StepRecord]:
    """Real steps of the plain engine: autograd of the loss, torch's clipping and optimizer.

    **Arguments:** `without`: ids of examples that add nothing to the loss of their batches, whose
    denominators stay what they were.
    """
    config = config.model_copy(update={"engine": EngineConfig(kind="plain", ranks=1)})
    objective, engine = (
        build_objective(config.objective),
        PlainEngine(ResponseLogits(model), config),
    )
    parameters = list(model.parameters())
    for step, examples in enumerate(batches):
        before, state = engine.master_weights(), engine.optimizer_state()
        rate = learning_rate(config, step)
        rest = [example for example in examples if example.id not in without]
        loss = torch.stack([0 * parameter.sum() for parameter in parameters]).sum()
        if rest:
            scored = [example.scored(parameters[0].dtype) for example in rest]
            totals, temperature = step_totals(examples, objective), rest[0].temperature
            batch = collate_step(scored, objective, totals, 0, temperature=temperature)
            loss = objective.loss(read_logps(objective, engine.logits(batch), batch), batch)
        engine.backward(loss)
        norm = engine.step(rate)
        facts = StepFacts(
            step=step,
            learning_rate=rate,
            grad_norm=norm,
            clip_factor=clip_factor(norm, config.clip_norm),
            clip_norm=config.clip_norm,
            objective=config.objective,
            optimizer=config.optimizer,
        )
        after = engine.master_weights()
        for name, moment in engine.second_moments().items():
            state.setdefault(name, {})[SECOND_MOMENT_AFTER] = moment.clone()
        yield StepRecord(facts, tuple(examples), before, after, state)


ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.1)


def trained(
    optimizer: OptimizerConfig,
    objective: Any = None,
    model: nn.Module | None = None,
    *,
    steps: int = 5,
    clip_norm: float = 0.5,
    count: int = 4,
) -> list[StepRecord]:
    """Real steps with warm-up on pairs, of DPO where no other objective is named; they are clipped
    where the bound is not raised."""
    model = model or neox()
    config = TrainConfig(
        objective=objective or DPOConfig(beta=0.5), optimizer=optimizer, clip_norm=clip_norm
    )
    return train_steps(model, config, with_reference(model, pairs(count)), steps=steps).records


def recorded(
    model: nn.Module,
    optimizer: OptimizerConfig = ADAMW,
    objective: Any = None,
    *,
    count: int = 2,
    steps: int = 2,
) -> StepRecord:
    """The last of some steps that are not clipped, of DPO where no other objective is named."""
    config = objective or DPOConfig()
    return trained(optimizer, config, model, steps=steps, clip_norm=10.0, count=count)[-1]


def every_objective() -> list[BaseModel]:
    """Every registered objective under its defaults, and under each of its other choices.

    Weights that are zero by default (a KL's, a label noise) are turned on one by one.
    """
    union, *_ = get_args(ObjectiveConfig)
    configs: list[BaseModel] = []
    for kind in get_args(union):
        fixed = REQUIRED.get(kind, {})
        configs.append(kind(**fixed))
        for name, field in kind.model_fields.items():
            others: list[Any] = []
            if name == "loss_type" and isinstance(field.default, tuple):
                kinds = get_args(get_args(field.annotation)[0])
                others = [(one,) for literal in kinds for one in get_args(literal)]
            elif get_origin(field.annotation) is Literal:
                others = [one for one in get_args(field.annotation) if one != field.default]
            elif field.annotation is float and field.default == 0:
                others = [0.2]
            for other in others:
                smooth = {"label_smoothing": 0.2} if other == ("exo_pair",) else {}
                configs.append(kind(**fixed, **smooth, **{name: other}))
    return configs


class Letters:
    """A tokenizer in which token n reads as t<n>."""

    all_special_ids: tuple[int, ...] = ()

    def decode(self, ids: list[int]) -> str:
        return f"t{ids[0]}"

    def convert_ids_to_tokens(self, token: int) -> str:
        return f"t{token}"


def read(sequence: Encoded) -> list[str]:
    """A response's tokens as `Letters` reads them."""
    return [f"t{token}" for token in sequence.ids[sequence.prompt_length :]]


def probe(pair_id: str, kind: str, prompt: str = "p", response: str = "r") -> ProbeRow:
    return ProbeRow(
        pair_id=pair_id, split="train", kind=kind, prompt=prompt, response=response, made_by="test"
    )
