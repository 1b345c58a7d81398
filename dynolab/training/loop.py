"""The training loop: probe, accumulate, step, record, checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dynolab import distributed
from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch, collate_examples, count_totals, draw
from dynolab.data.encode import EncodedExample
from dynolab.data.packing import plan_rows, sequences_of, share_prompts
from dynolab.data.results import MetricsLine, ProbeScore, TrainingSummary
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.errors import NonFiniteLoss
from dynolab.likelihood import ResponseLogits, packing_width, token_logps
from dynolab.objectives import build_objective
from dynolab.probes.score import score_probes
from dynolab.probes.summary import mean_by_kind
from dynolab.training.engine import Engine, PlainEngine
from dynolab.training.examples import load_examples, training_encoder
from dynolab.training.job import TrainJob
from dynolab.training.optimizer import clip_factor, learning_rate
from dynolab.training.record import RecordedExample, StepFacts, StepRecord
from dynolab.training.reference import SideLogps, score_reference
from dynolab.training.resume import load_state, save_state

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def train(job: TrainJob, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Runs a training job to its end on this process or, as one of them, on its ranks.

    **Arguments:**

    - `job`: settings and places.
    - `policy`: the initial weights, as loaded from `job.model`.
    - `tokenizer`: the policy's tokenizer.

    Writes into `job.output`: `model/`, `metrics.jsonl`, `probes.jsonl`, `forces/step-N/` and
    `summary.json`; resume states appear in `job.resume_out`.

    **Raises** `ConfigError` for data or settings that cannot work, `NonFiniteLoss` where training
    diverges.
    """
    Trainer(job, policy, tokenizer).run()


class Trainer:
    """One training run; `run` reads as the algorithm."""

    def __init__(
        self, job: TrainJob, policy: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self.job, self.config, self.tokenizer = job, job.config, tokenizer
        self.policy = policy.eval()  # no dropout: a probe and a step see the same function
        self.objective = build_objective(job.config.objective)
        self.device = distributed.device()
        context = int(policy.config.max_position_embeddings)
        self.encoder = training_encoder(job.config, tokenizer, context)
        self.examples = load_examples(
            job.examples, self.encoder, self.objective.sides, job.config.objective.name
        )
        self.pad_id = int(
            tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        )
        self.probes = list(read_rows(job.probes, ProbeRow)) if job.probes else []
        self.reference: dict[str, SideLogps] = {}

    def run(self) -> None:
        """The whole run."""
        job, config = self.job, self.config
        if distributed.rank() == 0:
            job.output.mkdir(parents=True, exist_ok=True)
        logits = ResponseLogits(self.policy.to(self.device))
        if self.objective.needs_reference:
            self.reference = score_reference(
                logits, self.examples, self.objective.sides, self.pad_id, config.micro_examples
            )
        engine = self._build_engine(logits)
        start = load_state(engine, job.resume_from, job.output) if job.resume_from else 0

        for step in range(start, config.steps):
            if config.probes_at(step):
                self._probe(engine, step)
            self._step(engine, step)
            if config.checkpoints_after(step):
                save_state(engine, step + 1, job.output, job.resume_out / f"step-{step + 1:08d}")
        if config.probes_at(config.steps):
            self._probe(engine, config.steps)
        self._finish(engine)

    def _step(self, engine: Engine, step: int) -> None:
        """One optimizer step on one drawn batch."""
        config, began = self.config, time.perf_counter()
        rows = draw(step, config.batch_size, len(self.examples), config.seed)
        batch = [self.examples[row] for row in rows]
        recorded = step in config.record_steps
        before = self._snapshot(engine) if recorded else None

        sums = self._accumulate(engine, batch)
        rate = learning_rate(config.optimizer, config.warmup_steps, step)
        norm = engine.step(rate)

        if before is not None:
            self._record(engine, step, rate, norm, batch, *before)
        values = {name: value / config.batch_size for name, value in sums.items()}
        values["train/loss"] = sums["train/loss"]
        values |= {
            "train/grad_norm": norm,
            "train/learning_rate": rate,
            "train/examples_per_s": config.batch_size / (time.perf_counter() - began),
        }
        self._log(step + 1, values)

    def _accumulate(self, engine: Engine, batch: Sequence[EncodedExample]) -> dict[str, float]:
        """Gradients of all micro-batches of this rank; returns sums over all ranks."""
        config, sides = self.config, self.objective.sides
        totals = count_totals(batch, sides)
        mine = batch[distributed.rank() :: distributed.world_size()]
        sums: dict[str, Tensor] = {}
        for start in range(0, len(mine), config.micro_examples):
            micro = mine[start : start + config.micro_examples]
            tokens = self._with_reference(collate_examples(micro, self.pad_id, sides, totals))
            rows = plan_rows(sequences_of(tokens), packing_width(engine.logits))
            tokens = share_prompts(tokens, rows).to(self.device)
            logps = engine.logits(tokens, token_logps)
            loss = self.objective.loss(logps, tokens)
            engine.backward(loss)
            named = {"train/loss": loss.detach(), **self.objective.metrics(logps, tokens)}
            for name, value in named.items():
                sums[name] = sums[name] + value if name in sums else value
        summed = distributed.sum_over_ranks(torch.stack([v.double() for v in sums.values()]))
        result = dict(zip(sums, summed.tolist(), strict=True))
        if not math.isfinite(result["train/loss"]):
            raise NonFiniteLoss(result["train/loss"], [one.id for one in batch])
        return result

    def _with_reference(self, tokens: TokenBatch) -> TokenBatch:
        """The batch with the reference's log-probabilities, in the order of its tokens."""
        if not self.objective.needs_reference:
            return tokens
        parts = [
            self.reference[tokens.ids[example]][side]
            for example, side in zip(tokens.example.tolist(), tokens.side.tolist(), strict=True)
        ]
        return replace(tokens, reference=torch.cat(parts))

    def _probe(self, engine: Engine, step: int) -> None:
        """Scores every probe row; the ranks share the work."""
        if not self.probes:
            return
        began = time.perf_counter()
        # Under ZeRO-3 every forward gathers weights from all ranks, so all must make the same ones.
        alone = self.config.engine.kind == "plain" or self.config.engine.zero_stage == 3
        share = (0, 1) if alone else (distributed.rank(), distributed.world_size())
        mine = score_probes(
            engine.logits, self.probes, self.encoder,
            batch_tokens=self.config.probe_batch_tokens, share=share,
        )  # fmt: skip
        rows = mine if alone else list(chain.from_iterable(distributed.gather(mine)))
        if distributed.rank() == 0:
            lines = (ProbeScore(step=step, **dict(row)).line() for row in rows)
            with (self.job.output / "probes.jsonl").open("a") as file:
                file.writelines(lines)
        self._log(step, {**mean_by_kind(rows), "probe/seconds": time.perf_counter() - began})

    def _snapshot(self, engine: Engine) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        return engine.master_weights(), engine.optimizer_state()

    def _record(
        self, engine: Engine, step: int, rate: float, norm: float,
        batch: Sequence[EncodedExample], before: dict[str, Tensor],
        state: dict[str, dict[str, Tensor]],
    ) -> None:  # fmt: skip
        """Writes the record of the step just made."""
        after = engine.master_weights()
        if distributed.rank() != 0:
            return
        facts = StepFacts(
            step=step,
            learning_rate=rate,
            grad_norm=norm,
            clip_factor=clip_factor(norm, self.config.clip_norm),
            objective=self.config.objective,
            optimizer=self.config.optimizer,
        )
        examples = tuple(self._recorded(one) for one in batch)
        record = StepRecord(facts, examples, before, after, state)
        record.save(self.job.output / "forces" / f"step-{step:08d}")

    def _recorded(self, example: EncodedExample) -> RecordedExample:
        reference = self.reference.get(example.id, {})
        chosen, rejected = reference.get(CHOSEN), reference.get(REJECTED)
        return RecordedExample(
            id=example.id,
            chosen=example.chosen,
            rejected=example.rejected if REJECTED in self.objective.sides else None,
            chosen_reference=None if chosen is None else chosen.tolist(),
            rejected_reference=None if rejected is None else rejected.tolist(),
        )

    def _log(self, step: int, values: dict[str, float]) -> None:
        if distributed.rank() != 0:
            return
        line = MetricsLine(
            step=step,
            examples=step * self.config.batch_size,
            time=time.time(),
            metrics=values,
        )
        with (self.job.output / "metrics.jsonl").open("a") as file:
            file.write(line.model_dump_json() + "\n")

    def _finish(self, engine: Engine) -> None:
        """Saves the trained model as a folder that `from_pretrained` loads."""
        weights = engine.master_weights()
        if distributed.rank() == 0:
            folder = self.job.output / "model"
            self.policy.save_pretrained(folder, state_dict=weights)
            self.tokenizer.save_pretrained(folder)
            summary = TrainingSummary(
                steps=self.config.steps,
                objective=self.config.objective.name,
                rows=self.encoder.counts.as_metrics(),
            )
            (self.job.output / "summary.json").write_text(summary.model_dump_json(indent=1))
        distributed.barrier()

    def _build_engine(self, logits: ResponseLogits) -> Engine:
        if self.config.engine.kind == "plain":
            return PlainEngine(logits, self.config)
        from dynolab.training.deepspeed_engine import DeepSpeedEngine

        return DeepSpeedEngine(logits, self.config)
