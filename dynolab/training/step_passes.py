"""The forward and backward passes of a training step, micro-batch by micro-batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dynolab import distributed
from dynolab.data.batches import TokenBatch, Totals
from dynolab.data.packing import plan_rows, sequences_of, share_prompts
from dynolab.likelihood.token_logps import causal_model, packing_width
from dynolab.objectives import Objective, read_logps
from dynolab.training.config import LoopConfig
from dynolab.training.dose import Designer, doses_by_example, quantiles, strengths
from dynolab.training.engine import Engine
from dynolab.training.sharpness import Shift, ascent, no_shift, output_layer, shifted
from dynolab.training.step_batch import StepExample, collate_step


class Accumulated(NamedTuple):
    """A step's sums over all ranks, by metric name, and quantiles of its dynamic learning rates.

    `doses`: of this rank's tokens by example, where they were designed; of pairs the rejected ones.
    """

    sums: dict[str, float]
    quantiles: dict[str, float]
    doses: list[Tensor]


class StepPasses:
    """Accumulates the gradients of a step's examples; each rank has its share of them.

    **Arguments:** `temperature`: at which completions were sampled; `designer`: chooses doses,
    where the objective has them.
    """

    def __init__(
        self,
        config: LoopConfig,
        objective: Objective,
        designer: Designer | None,
        *,
        temperature: float,
        pad_id: int,
    ) -> None:
        self._config, self._objective, self._designer = config, objective, designer
        self._temperature, self._pad_id = temperature, pad_id

    def accumulate(
        self, engine: Engine, step: int, examples: Sequence[StepExample], totals: Totals
    ) -> Accumulated:
        """The passes of all this rank's micro-batches, forwards and backwards."""
        rho = getattr(self._config.objective, "logits_sam", None)
        if rho is None:
            return self._accumulate(engine, step, examples, totals)
        layer = output_layer(causal_model(engine.logits.model))  # type: ignore[arg-type]
        with shifted(layer, self._ascent(engine, layer, rho, examples, totals)):
            return self._accumulate(engine, step, examples, totals)

    def _ascent(
        self,
        engine: Engine,
        layer: nn.Linear,
        rho: float,
        examples: Sequence[StepExample],
        totals: Totals,
    ) -> Shift:
        """How the output layer is moved for the step's gradient (`dynolab.training.sharpness`)."""
        zeros = no_shift(layer)
        gradient = torch.zeros_like(zeros, requires_grad=False)
        read = partial(read_logps, self._objective)
        with shifted(layer, zeros):
            for micro in self.micro_batches(examples):
                # Ranks run the same number of forwards, also of micro-batches without examples.
                tokens = self.tokens(engine, micro or examples[:1], totals)
                loss = self._objective.loss(engine.logits(tokens, read), tokens)
                if micro:
                    gradient += torch.autograd.grad(loss, zeros)[0]
        return ascent(distributed.add_up(gradient), rho)

    def _accumulate(
        self, engine: Engine, step: int, examples: Sequence[StepExample], totals: Totals
    ) -> Accumulated:
        sums: dict[str, Tensor] = {}
        step_strengths, doses = list[Tensor](), list[Tensor]()
        for micro, tokens, logps in self._forwards(engine, step, examples, totals):
            loss = self._objective.loss(logps, tokens)
            if not micro:
                engine.backward(0 * loss)
                continue
            engine.backward(loss)
            doses += doses_by_example(tokens)
            metrics = {"train/loss": loss.detach(), **self._objective.metrics(logps, tokens)}
            for name, value in metrics.items():
                sums[name] = sums[name] + value if name in sums else value
            values = strengths(self._objective, logps.detach(), tokens)
            if values is not None:
                step_strengths.append(values)
        return Accumulated(_sum_over_ranks(sums), quantiles(step_strengths), doses)

    def _forwards(
        self, engine: Engine, step: int, examples: Sequence[StepExample], totals: Totals
    ) -> Iterator[tuple[Sequence[StepExample], TokenBatch, Tensor]]:
        """This rank's micro-batches with what the objective reads of them, with its graph."""
        micros = self.micro_batches(examples)
        batches = (self.tokens(engine, micro or examples[:1], totals) for micro in micros)
        read = partial(read_logps, self._objective)
        if self._designer is None:
            for micro, tokens in zip(micros, batches, strict=True):
                yield micro, tokens, engine.logits(tokens, read)
            return
        # Doses need every token before the first backward; only one graph is there at a time.
        all_tokens, has_one = list(batches), len(micros) == 1
        with torch.set_grad_enabled(has_one):
            starts = [engine.logits(tokens, read) for tokens in all_tokens]
        filled = [number for number, micro in enumerate(micros) if micro]
        doses = self._designer.design(
            engine,
            step,
            [all_tokens[number] for number in filled],
            [starts[number].detach() for number in filled],
            {example.id for example in examples},
        )
        dose_of = dict(zip(filled, doses, strict=True))
        for number, micro in enumerate(micros):
            tokens = replace(all_tokens[number], dose=dose_of.get(number))
            yield micro, tokens, starts[number] if has_one else engine.logits(tokens, read)

    def micro_batches(self, examples: Sequence[StepExample]) -> list[Sequence[StepExample]]:
        """Splits this rank's examples into micro-batches; every rank runs the same number.

        Engines rely on that number; some are empty if the source has left examples out.
        """
        mine = distributed.deal(examples)
        count = self._config.accumulation
        edges = [len(mine) * number // count for number in range(count + 1)]
        return [mine[start:stop] for start, stop in pairwise(edges)]

    def tokens(self, engine: Engine, examples: Sequence[StepExample], totals: Totals) -> TokenBatch:
        """The examples' tokens, on the device; responses share rows where the model allows it."""
        tokens = collate_step(
            examples, self._objective, totals, self._pad_id, temperature=self._temperature
        )
        rows = plan_rows(sequences_of(tokens), packing_width(engine.logits))
        return share_prompts(tokens, rows).to(distributed.device())


def _sum_over_ranks(sums: dict[str, Tensor]) -> dict[str, float]:
    """Adds named values over all ranks; a rank without examples has no names."""
    values = torch.stack([value.double() for value in sums.values()]).tolist() if sums else []
    shares = distributed.gather(dict(zip(sums, values, strict=True)))
    names = dict.fromkeys(chain.from_iterable(shares))
    return {name: math.fsum(share.get(name, 0.0) for share in shares) for name in names}
