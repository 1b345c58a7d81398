"""Scoring probe rows beside a plain loop and beside lm-eval: same rows, same tokens.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.probing

FOLDER holds `models/tinystories-656k`, `models/pythia-tokenizer` and `data/probes`. Prints one JSON
object on its last line; a figure of the randomly initialised Pythia-70m shape ends in `_70m`. The
rows are the paper's 500 prompts × 13 kinds; a prompt that the context cuts is cut alike on all
sides. They are taken in blocks of prompts; in every block one after another scores the same rows,
in every other block in the opposite order; a ratio is the median over blocks, `…_low` and `…_high`
are the smallest and the largest.

- `agreement_nats`: largest difference of a row's log-probability from that of transformers' own
  forward on one sequence at a time, with its log-softmax in float64, over every fifth row.
  `loop_agreement_nats`: the same of the plain loop, whose float32 log-softmax drifts over a row.
- `speedup_vs_one_by_one`, `speedup_vs_lm_eval`: its time over ours, tokenising included in ours
  alone; lm-eval has the batch size with which its longest rows fill as many padded tokens.
- `speedup_over_flop_ratio`, `…_70m`: the speed-up over the plain loop, over the ratio of the
  counted multiplications.
- `probe_over_packed_forward`: scoring over a forward of the same batches, with the head where a
  response token is predicted, of whose logits nothing is read.
- `training_overhead`: time of 50 DPO steps of 16 pairs with one probe of 100 prompts × 13 kinds
  over their time without, from the median step and the median probe.
- `tokens_left`: tokens run with prompts shared, over those without.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dynolab.data.encode import Encoded, Encoder
from dynolab.data.prefixes import collate_prefixes, plan_prefixes
from dynolab.data.rows import Example, ProbeRow, write_rows
from dynolab.data.sources.load import DataConfig, load_data
from dynolab.likelihood.token_logps import ResponseLogits, packing_width
from dynolab.probes.score import ProbeScorer
from models.language import load_language_model, load_tokenizer, save_language_model
from tests.benchmarks.figures import gather, report, spread, timed
from tests.benchmarks.pythia import pythia, pythia_tokenizer

BATCH_TOKENS, STEPS_BETWEEN, PAIRS, PROBED = 16_384, 50, 16, 100
FIFTH = 5
BLOCKS = {"tinystories": (5, 100), "70m": (5, 10)}
"""How many blocks of how many prompts."""

AT_MOST = {"agreement_nats": 1e-4, "probe_over_packed_forward": 1.4}
AT_LEAST = {
    "speedup_vs_one_by_one": 4.0,
    "speedup_vs_lm_eval": 3.0,
    "speedup_over_flop_ratio": 0.95,
    "speedup_over_flop_ratio_70m": 0.95,
}


class Bench:
    """One model with its tokenizer, and the paper's rows."""

    def __init__(self, which: str) -> None:
        self.which, source = which, Path(os.environ["DYNOLAB_TEST_DATA"])
        file = source / "data/probes/hh_helpful_probe_train.jsonl.gz"
        stories = source / "models/tinystories-656k"
        if which == "tinystories":
            self.tokenizer = load_tokenizer(stories)
            self.model: Any = load_language_model(stories)
        else:
            self.tokenizer, self.model = pythia_tokenizer(), pythia()
        self.model.eval()
        self.logits = ResponseLogits(self.model)
        self.context = int(self.model.config.max_position_embeddings)
        data = DataConfig(
            source="file", path=str(file), format="probe_file", probe_pairs=500, heldout_rows=0
        )
        loaded = load_data(data)
        self.pairs: list[Example] = loaded.pairs
        self.by_prompt: dict[str, list[ProbeRow]] = {}
        for row in loaded.probes:
            self.by_prompt.setdefault(row.pair_id, []).append(row)

    def encoder(self) -> Encoder:
        return Encoder(self.tokenizer, self.context, "truncate_left")

    def block(self, number: int) -> list[ProbeRow]:
        count, size = BLOCKS[self.which]
        chosen = list(self.by_prompt.values())[number : count * size : count]
        return [row for rows in chosen for row in rows]

    def sequences(self, rows: Sequence[ProbeRow]) -> list[Encoded]:
        return [probe for probe in self.encoder().probes(rows) if probe is not None]

    def ours(self, rows: Sequence[ProbeRow]) -> list[float]:
        scorer = ProbeScorer(self.logits, rows, self.encoder(), batch_tokens=BATCH_TOKENS)
        return [score.logp for score in scorer.score()]

    @torch.no_grad()
    def one_by_one(
        self, sequences: Sequence[Encoded], dtype: torch.dtype = torch.float32
    ) -> list[float]:
        """The plain loop; `dtype`: of the log-softmax."""
        logps = []
        for sequence in sequences:
            ids = torch.tensor([sequence.ids])
            logits = self.model(input_ids=ids).logits[0, sequence.prompt_length - 1 : -1]
            logp = logits.log_softmax(-1, dtype=dtype)
            own = logp.gather(-1, ids[0, sequence.prompt_length :, None])
            logps.append(float(own.double().sum()))
        return logps

    @torch.no_grad()
    def forward(self, batches: Sequence[Any]) -> None:
        for batch in batches:
            self.logits(batch, lambda logits, _: logits[:, :1])

    def batches(self, sequences: Sequence[Encoded]) -> list[Any]:
        plan = plan_prefixes(sequences, BATCH_TOKENS, packing_width(self.logits) is not None)
        return [collate_prefixes(sequences, rows, 0)[0] for rows in plan]


def lm_eval_of(bench: Bench, longest: int) -> Callable[[Sequence[Encoded]], list[float]]:
    """lm-eval's likelihoods of given tokens: its own tokenising is left out, to its favour."""
    from lm_eval.models.huggingface import HFLM

    measured = HFLM(
        pretrained=bench.model,
        tokenizer=bench.tokenizer,
        device="cpu",
        batch_size=max(1, BATCH_TOKENS // longest),
        max_length=bench.context,
    )

    def score(sequences: Sequence[Encoded]) -> list[float]:
        requests = [
            (
                (str(number), ""),
                list(sequence.ids[: sequence.prompt_length]),
                list(sequence.ids[sequence.prompt_length :]),
            )
            for number, sequence in enumerate(sequences)
        ]
        answers = measured._loglikelihood_tokens(requests, disable_tqdm=True)
        return [float(logp) for logp, _ in answers]

    return score


def multiplications(bench: Bench, sequences: Sequence[Encoded]) -> tuple[float, float]:
    """Of the plain loop and of ours: weights × tokens, and pairs of tokens that are formed."""
    config = bench.model.config
    head = config.hidden_size * config.vocab_size
    body = sum(w.numel() for n, w in bench.model.named_parameters() if "embed" not in n) - (
        0 if config.tie_word_embeddings else head
    )
    pair = 2 * config.hidden_size * config.num_hidden_layers
    plain = sum(
        (body + head) * len(sequence.ids) + pair * len(sequence.ids) ** 2 for sequence in sequences
    )
    prompts = {sequence.ids[: sequence.prompt_length] for sequence in sequences}
    shared = sum(body * len(prompt) + pair * len(prompt) ** 2 for prompt in prompts)
    for sequence in sequences:
        tail = sequence.response_length - 1
        shared += body * tail + pair * tail * len(sequence.ids) + head * sequence.response_length
    return float(plain), float(shared)


def scoring(which: str, blocks_run: int | None) -> dict[str, float]:
    """Every ratio of one model, block by block in turn."""
    bench = Bench(which)
    count, _ = BLOCKS[which]
    blocks = [bench.block(number) for number in range(count)][:blocks_run]
    sequences = [bench.sequences(rows) for rows in blocks]
    longest = max(len(sequence.ids) for part in sequences for sequence in part)
    theirs = lm_eval_of(bench, longest) if which == "tinystories" else None
    bench.ours(blocks[0][:130])
    bench.one_by_one(sequences[0][:20])
    ratios: dict[str, list[float]] = {}
    gap, loop_gap, work = 0.0, 0.0, {"ours": 0.0, "one_by_one": 0.0}
    for number, (rows, part) in enumerate(zip(blocks, sequences, strict=True)):
        works: dict[str, Callable[[], Any]] = {
            "ours": partial(bench.ours, rows),
            "one_by_one": partial(bench.one_by_one, part),
            "forward": partial(bench.forward, bench.batches(part)),
        }
        if theirs:
            works["lm_eval"] = partial(theirs, part)
        order = list(works) if number % 2 == 0 else list(reversed(works))
        measured = {name: timed(works[name]) for name in order}
        (mine, logps), (plain, truth), (bare, _) = (
            measured[name] for name in ("ours", "one_by_one", "forward")
        )
        exact = bench.one_by_one(part[::FIFTH], torch.float64)
        gap = max(gap, *(abs(a - b) for a, b in zip(logps[::FIFTH], exact, strict=True)))
        loop_gap = max(loop_gap, *(abs(a - b) for a, b in zip(truth[::FIFTH], exact, strict=True)))
        work["ours"] += mine
        work["one_by_one"] += plain
        block = {"speedup_vs_one_by_one": plain / mine, "probe_over_packed_forward": mine / bare}
        dense, shared = multiplications(bench, part)
        block["speedup_over_flop_ratio"] = plain / mine / (dense / shared)
        block["flop_ratio"] = dense / shared
        if theirs:
            other, values = measured["lm_eval"]
            block["speedup_vs_lm_eval"] = other / mine
            off = max(abs(a - b) for a, b in zip(values, truth, strict=True))
            block["agreement_of_lm_eval_nats"] = off
        for name, value in block.items():
            ratios.setdefault(name, []).append(value)
    every = [sequence for part in sequences for sequence in part]
    prompts = {sequence.ids[: sequence.prompt_length] for sequence in every}
    left = sum(map(len, prompts)) + sum(sequence.response_length - 1 for sequence in every)
    figures: dict[str, float] = {}
    for name, values in ratios.items():
        bounded = "speedup_vs" in name or "over" in name
        figures |= spread(name, values) if bounded else {name: statistics.median(values)}
    figures |= {
        "agreement_nats": gap,
        "loop_agreement_nats": loop_gap,
        "rows": float(len(every)),
        "tokens_left": left / sum(len(sequence.ids) for sequence in every),
        "seconds": work["ours"],
        "seconds_one_by_one": work["one_by_one"],
    }
    suffix = "" if which == "tinystories" else f"_{which}"
    return {name + suffix: value for name, value in figures.items()}


def overhead() -> dict[str, float]:
    """A probe and a step, measured in turn within one training."""
    from dynolab.training.config import TrainConfig
    from dynolab.training.job import TrainJob
    from dynolab.training.loop import train

    bench = Bench("tinystories")
    rows = [row for rows in list(bench.by_prompt.values())[:PROBED] for row in rows]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_language_model(bench.model, bench.tokenizer, folder / "model")
        write_rows(folder / "train.jsonl", bench.pairs)
        write_rows(folder / "probes.jsonl", rows)
        job = TrainJob(
            config=TrainConfig.model_validate(
                {
                    "objective": {"name": "dpo"},
                    "engine": {"kind": "plain", "ranks": 1},
                    "steps": 8,
                    "batch_size": PAIRS,
                    "micro_batch_size": PAIRS // 2,
                    "overlong": "truncate_left",
                    "probe_every": 2,
                }
            ),
            model=folder / "model",
            examples=folder / "train.jsonl",
            probes=folder / "probes.jsonl",
            output=folder / "output",
            resume_out=folder / "resume",
        )
        train(job, load_language_model(folder / "model"), bench.tokenizer)
        written = (folder / "output/metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line)["metrics"] for line in written]
    probes = [step["probe/seconds"] for step in metrics if "probe/seconds" in step]
    speeds = [step["train/examples_per_s"] for step in metrics if "train/examples_per_s" in step]
    probe, step = statistics.median(probes[1:]), PAIRS / statistics.median(speeds[1:])
    return {
        "seconds_of_probe": probe,
        "seconds_of_step": step,
        "training_overhead": 1 + probe / (STEPS_BETWEEN * step),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=["tinystories", "70m", "overhead"])
    parser.add_argument("--blocks", type=int, help="so many blocks of each model alone")
    arguments = parser.parse_args()
    only, blocks = arguments.only, arguments.blocks
    parts = {
        "tinystories": lambda: scoring("tinystories", blocks),
        "70m": lambda: scoring("70m", blocks),
        "overhead": overhead,
    }
    chosen = [part for name, part in parts.items() if only in (None, name)]
    figures = gather(chosen, threads=float(torch.get_num_threads()))
    report(figures, at_least=AT_LEAST, at_most=AT_MOST)


if __name__ == "__main__":
    main()
