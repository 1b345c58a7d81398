"""Scoring probe rows beside a plain loop and beside lm-eval: same rows, same tokens.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.probing [--blocks N]

FOLDER holds `models/tinystories-656k` and `data/probes`. Prints one JSON object on its last line.
The rows are the paper's 500 prompts × 13 kinds; a prompt that the context cuts is cut alike on all
sides. They are taken in blocks of prompts; in every block one after another scores the same rows,
each first in turn; a ratio is the median over blocks, `…_low` and `…_high` are the smallest and the
largest.

- `agreement_nats`: largest difference of a row's log-probability from that of transformers' own
  forward on one sequence at a time, with its log-softmax in float64, over every fifth row.
- `speedup_vs_one_by_one`, `speedup_vs_lm_eval`: its time over ours, tokenising included in ours
  alone; lm-eval has the batch size with which its longest rows fill as many padded tokens.
- `probe_over_packed_forward`: scoring over a forward of the same batches, with the head where a
  response token is predicted, of whose logits nothing is read.
- `tokens_left`: tokens run with prompts shared, over those without.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch

from dynolab.data.encode import Encoded, Encoder
from dynolab.data.packing import collate_rows, plan_rows, rows_by_length
from dynolab.data.rows import ProbeRow
from dynolab.data.sources.load import DataConfig, load_data
from dynolab.likelihood.token_logps import ResponseLogits, packing_width
from dynolab.probes.score import NEAR_TOKENS, ProbeScorer
from models.language import load_language_model, load_tokenizer
from tests.benchmarks.figures import real_inputs, report, spread, timed

BATCH_TOKENS, BLOCKS, EVERY = 16_384, 5, 5
AT_MOST = {"agreement_nats": 1e-4, "probe_over_packed_forward": 1.4}
AT_LEAST = {"speedup_vs_one_by_one": 4.0, "speedup_vs_lm_eval": 3.0}


class Bench:
    """The model with its tokenizer, and the paper's rows in blocks of prompts."""

    def __init__(self) -> None:
        folder, file = real_inputs(
            "models/tinystories-656k", "data/probes/hh_helpful_probe_train.jsonl.gz"
        )
        self.tokenizer, self.model = load_tokenizer(folder), load_language_model(folder).eval()
        self.logits = ResponseLogits(self.model)
        self.context = int(self.model.config.max_position_embeddings)
        data = DataConfig(
            source="file", path=str(file), format="probe_file", probe_pairs=500, heldout_rows=0
        )
        by_prompt: dict[str, list[ProbeRow]] = {}
        for row in load_data(data).probes:
            by_prompt.setdefault(row.pair_id, []).append(row)
        prompts = list(by_prompt.values())
        self.blocks = [list(chain(*prompts[number::BLOCKS])) for number in range(BLOCKS)]

    def encoder(self) -> Encoder:
        return Encoder(self.tokenizer, self.context, "truncate_left")

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
        rows = plan_rows(sequences, packing_width(self.logits), NEAR_TOKENS)
        plan = rows_by_length(sequences, rows, NEAR_TOKENS)
        return [collate_rows(sequences, together, 0)[0] for together in plan]

    def lm_eval(self) -> Callable[[Sequence[Encoded]], Any]:
        """lm-eval's likelihoods of given tokens: its own tokenising is left out, to its favour."""
        from lm_eval.models.huggingface import HFLM

        longest = max(len(each.ids) for rows in self.blocks for each in self.sequences(rows))
        measured = HFLM(
            pretrained=self.model,
            tokenizer=self.tokenizer,
            device="cpu",
            batch_size=max(1, BATCH_TOKENS // longest),
            max_length=self.context,
        )

        def score(sequences: Sequence[Encoded]) -> Any:
            requests = [
                (
                    (str(number), ""),
                    list(sequence.ids[: sequence.prompt_length]),
                    list(sequence.ids[sequence.prompt_length :]),
                )
                for number, sequence in enumerate(sequences)
            ]
            return measured._loglikelihood_tokens(requests, disable_tqdm=True)

        return score


def scoring(blocks: int) -> dict[str, float]:
    """Every ratio, block by block in turn."""
    bench = Bench()
    lm_eval = bench.lm_eval()
    bench.ours(bench.blocks[0][:130])
    bench.one_by_one(bench.sequences(bench.blocks[0][:20]))
    seconds: dict[str, list[float]] = {}
    gap, every = 0.0, []
    for number, rows in enumerate(bench.blocks[:blocks]):
        part = bench.sequences(rows)
        every += part
        works: dict[str, Callable[[], Any]] = {
            "ours": partial(bench.ours, rows),
            "one_by_one": partial(bench.one_by_one, part),
            "forward": partial(bench.forward, bench.batches(part)),
            "lm_eval": partial(lm_eval, part),
        }
        results = {}
        for name in list(works) if number % 2 == 0 else reversed(works):
            took, results[name] = timed(works[name])
            seconds.setdefault(name, []).append(took)
        exact = bench.one_by_one(part[::EVERY], torch.float64)
        pairs = zip(results["ours"][::EVERY], exact, strict=True)
        gap = max(gap, *(abs(one - other) for one, other in pairs))
    prompts = {sequence.ids[: sequence.prompt_length] for sequence in every}
    left = sum(map(len, prompts)) + sum(sequence.response_length - 1 for sequence in every)
    figures = {
        "agreement_nats": gap,
        "rows": float(len(every)),
        "tokens_left": left / sum(len(sequence.ids) for sequence in every),
        "seconds": sum(seconds["ours"]),
    }
    for key, upper, lower in (
        ("speedup_vs_one_by_one", "one_by_one", "ours"),
        ("speedup_vs_lm_eval", "lm_eval", "ours"),
        ("probe_over_packed_forward", "ours", "forward"),
    ):
        ratios = [a / b for a, b in zip(seconds[upper], seconds[lower], strict=True)]
        figures |= spread(key, ratios)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="so many blocks alone")
    report(scoring(parser.parse_args().blocks), at_least=AT_LEAST, at_most=AT_MOST)


if __name__ == "__main__":
    main()
