"""A rank program: samples between the steps of a trained policy, at several ZeRO stages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from dynolab import distributed
from dynolab.data.batches import CHOSEN, collate_examples, count_totals
from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, read_rows
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import build_objective
from dynolab.rollouts.decoding import ModelGenerator
from dynolab.rollouts.generator import SampleConfig, generate_on_ranks
from dynolab.training.config import TrainConfig
from dynolab.training.deepspeed_engine import DeepSpeedEngine, init_ranks
from dynolab.training.engine import Engine, PlainEngine
from models.language import load_language_model, load_tokenizer
from tests.training.small import settings

SAMPLING = SampleConfig(max_new_tokens=12, batch_size=3, seed=3)
SAMPLES, STEPS = 2, 3


def sampled_run(folder: Path, kind: str, ranks: int, zero_stage: int, gather: bool = True) -> dict:
    """Responses drawn after every step, and the trained weights' sum."""
    config = settings(
        objective={"name": "sft"},
        engine={"kind": kind, "ranks": ranks, "zero_stage": zero_stage},
        micro_batch_size=4,
    )
    tokenizer = load_tokenizer(folder / "model")
    policy = load_language_model(folder / "model")
    logits = ResponseLogits(policy)
    engine: Engine = (
        PlainEngine(logits, config) if kind == "plain" else DeepSpeedEngine(logits, config)
    )
    generator = ModelGenerator(policy, tokenizer)
    encoder = Encoder(tokenizer, 48, "error")
    rows = encoder.examples(read_rows(folder / "train.jsonl", Example))
    prompts = [list(row.chosen.ids[: row.chosen.prompt_length]) for row in rows[:5]]
    drawn = []
    for step in range(STEPS):
        _train_step(engine, config, rows[step * 8 : step * 8 + 8])
        if gather:
            with engine.gathered():
                groups = generate_on_ranks(generator, prompts, SAMPLING, samples=SAMPLES, step=step)
            drawn.append([[list(sample.response) for sample in group] for group in groups])
    weights = engine.master_weights()
    return {"drawn": drawn, "weights": {name: w.tolist() for name, w in weights.items()}}


def _train_step(engine: Engine, config: TrainConfig, batch: list) -> None:
    objective, totals = build_objective(config.objective), count_totals(batch, (CHOSEN,))
    mine = batch[distributed.rank() :: distributed.world_size()]
    for start in range(0, len(mine), config.micro_examples):
        micro = mine[start : start + config.micro_examples]
        tokens = collate_examples(micro, 0, (CHOSEN,), totals)
        engine.backward(objective.loss(token_logps(engine.logits(tokens), tokens), tokens))
    engine.step(1e-2)


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(json.loads(Path(sys.argv[1]).read_text())["inputs"])
    init_ranks()
    for stage in (0, 2, 3):
        result = sampled_run(folder, "deepspeed", 2, stage)
        if distributed.rank() == 0:
            (folder / f"zero{stage}.json").write_text(json.dumps(result))
    undisturbed = sampled_run(folder, "deepspeed", 2, 3, gather=False)
    if distributed.rank() == 0:
        (folder / "undisturbed.json").write_text(json.dumps(undisturbed))
    distributed.barrier()


if __name__ == "__main__":
    main()
