"""Scores probe rows under a model: log-likelihood and per-token statistics, and their means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dynolab import distributed
from dynolab.data.batches import TokenBatch
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.packing import collate_rows, plan_rows, rows_by_length
from dynolab.data.rows import ProbeRow
from dynolab.errors import ConfigError
from dynolab.grouping import grouped
from dynolab.likelihood.streamed import device_of
from dynolab.likelihood.token_facts import TokenFacts, token_facts
from dynolab.likelihood.token_logps import ResponseLogits, causal_model, packing_width
from dynolab.results.study import ARGMAX, Score, TokenScores

NEAR_TOKENS = 4096
"""Tokens of a batch on a CPU: the hidden states of more of them leave its cache."""

Item = TypeVar("Item")


def score_probes(
    model: nn.Module,
    rows: Sequence[ProbeRow],
    encoder: Encoder,
    *,
    batch_tokens: int,
    share: tuple[int, int] = (0, 1),
    device: torch.device | str | None = None,
    per_token: bool = False,
) -> list[Score]:
    """Scores rows once; for the arguments see `ProbeScorer`."""
    scorer = ProbeScorer(model, rows, encoder, batch_tokens=batch_tokens, share=share)
    return scorer.score(device=device, per_token=per_token)


class ProbeScorer:
    """Encodes and batches probe rows once, to score them repeatedly as the model learns.

    Rows that the overlong rule drops have no score. On a CPU rows of one prompt share its forward;
    on a GPU every row is read alone, as is quicker there. If the
    prompt is cut, it is cut alike for all of them.

    **Arguments:**

    - `model`: a `ResponseLogits`, or an engine's wrapper of one.
    - `encoder`: its settings encode the rows; its counts do not change.
    - `batch_tokens`: bound of rows × padded length per forward; a longer row is scored alone.
    - `share`: `(rank, world)`: scores only this rank's contiguous share of the rows; concatenated
      in rank order, the ranks' results are in the rows' order.
    - `sequences`: the rows' tokens, where the encoder shall not read their texts.
    - `in_step`: whether all ranks run the same number of forwards, as they must where each needs
      the others' weights (ZeRO-3). All ranks then build their scorers together.

    **Raises:** `ConfigError` if the encoder's tokenizer produces tokens outside the model's
    vocabulary.
    """

    def __init__(
        self,
        model: nn.Module | ResponseLogits,
        rows: Sequence[ProbeRow],
        encoder: Encoder,
        *,
        batch_tokens: int,
        share: tuple[int, int] = (0, 1),
        sequences: Sequence[Encoded | None] = (),
        in_step: bool = False,
    ) -> None:
        self.model = model
        copy = Encoder(encoder.tokenizer, encoder.max_length, encoder.overlong)
        encoded = zip(rows, sequences or copy.probes(rows), strict=True)
        fitting = [(row, sequence) for row, sequence in encoded if sequence is not None]
        mine = _share(fitting, *share)
        self.rows = [row for row, _ in mine]
        """This rank's rows, without dropped ones."""
        my_sequences = [sequence for _, sequence in mine]
        _check_vocabulary(model, my_sequences)
        tokenizer = encoder.tokenizer
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        width = packing_width(model) if _device(model).type == "cpu" else None
        most = batch_tokens if width is None else min(batch_tokens, NEAR_TOKENS)

        def batches_of(sequences: Sequence[Encoded]) -> list[tuple[TokenBatch, list[int]]]:
            rows = plan_rows(sequences, width, most)
            return [
                collate_rows(sequences, together, int(pad))
                for together in rows_by_length(sequences, rows, most)
            ]

        self._batches = batches_of(my_sequences)
        if in_step and fitting:
            first = fitting[0][1]
            one_token = Encoded(first.ids[: first.prompt_length + 1], first.prompt_length)
            ((idle, _),) = batches_of([one_token])
            others = max(distributed.gather(len(self._batches))) - len(self._batches)
            self._batches += [(idle, [])] * others

    def score(
        self, *, device: torch.device | str | None = None, per_token: bool = False
    ) -> list[Score]:
        """Scores the rows, in order, without gradient and in eval mode; restores modules' modes.

        **Arguments:**

        - `device`: of the batches; by default that of the model's passes.
        - `per_token`: whether to fill the scores' `token_scores`.
        """
        target = device or _device(self.model)
        scores: dict[int, Score] = {}
        training = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            for batch, members in self._batches:
                if not members:
                    _run(self.model, batch.to(target))
                    continue
                rows = [self.rows[number] for number in members]
                # Sums are taken on the host: a GPU may add float64 in another order each time.
                table = _run(self.model, batch.to(target)).cpu().double()
                scores |= dict(zip(members, _score(table, rows, batch, per_token), strict=True))
        finally:
            for module, mode in training.items():
                module.training = mode
        return [scores[number] for number in range(len(self.rows))]


def _device(model: Any) -> torch.device:
    return device_of(causal_model(model.model))


def _check_vocabulary(model: Any, sequences: Sequence[Encoded]) -> None:
    """Raises ConfigError for token ids outside the embedding: on a GPU they abort the process."""
    embedding: Any = causal_model(model.model).get_input_embeddings()  # type: ignore[operator]
    rows = getattr(embedding, "num_embeddings", math.inf)
    largest = max((max(sequence.ids) for sequence in sequences), default=0)
    if largest >= rows:
        raise ConfigError(
            "tokenizer",
            f"token {largest}",
            f"the model's embedding has {rows} rows; use the tokenizer that belongs to the model",
        )


def _share(items: list[Item], rank: int, world: int) -> list[Item]:
    return items[len(items) * rank // world : len(items) * (rank + 1) // world]


@torch.no_grad()
def _run(model: nn.Module, batch: TokenBatch) -> Float[Tensor, "tokens facts"]:
    return model(batch, lambda logits, batch: token_facts(logits, batch.token).table())


def _score(
    table: Float[Tensor, "tokens facts"],
    rows: Sequence[ProbeRow],
    batch: TokenBatch,
    per_token: bool,
) -> list[Score]:
    facts = TokenFacts.of_table(table)
    equal = (facts.argmax == batch.token).double()
    summed = torch.stack(
        [
            facts.logp,
            facts.argmax_logp,
            facts.outside_logmass,
            facts.outside_mass,
            equal,
            facts.rank.log(),
            facts.entropy,
            facts.energy,
            facts.a_frobenius**2,
        ],
        dim=1,
    )
    lengths = batch.sequence_length
    sums = batch.sequence_sum(summed).tolist()
    numbers = lengths.tolist()
    tokens = _token_scores(batch, table, numbers) if per_token else [None] * len(rows)
    scores = []
    for row, n, counts, values in zip(rows, numbers, tokens, sums, strict=True):
        logp, best, outside, mass, likeliest, rank, entropy, energy, square = values
        score = Score(
            pair_id=row.pair_id,
            split=row.split,
            kind=row.kind,
            tokens=n,
            logp=logp,
            argmax_logp=best,
            outside_logmass=outside,
            outside_mass=mass / n,
            argmax_tokens_equal=likeliest / n,
            log_rank=rank / n,
            entropy=entropy / n,
            energy=energy / n,
            a_frobenius=(square / n) ** 0.5,
            token_scores=counts,
        )
        scores.append(score)
    return scores


def _token_scores(
    batch: TokenBatch, table: Float[Tensor, "tokens facts"], lengths: list[int]
) -> list[TokenScores]:
    """Splits the batch's tokens, concatenated sequence by sequence, into scores per sequence."""
    parts = zip(batch.token.split(lengths), table.split(lengths), strict=True)
    scores = []
    for token, part in parts:
        facts = TokenFacts.of_table(part)
        of_sequence = TokenScores(
            token=token.tolist(),
            argmax=facts.argmax.long().tolist(),
            rank=facts.rank.long().tolist(),
            logp=facts.logp.tolist(),
            argmax_logp=facts.argmax_logp.tolist(),
            outside_logmass=facts.outside_logmass.tolist(),
            entropy=facts.entropy.tolist(),
            energy=facts.energy.tolist(),
            a_frobenius=facts.a_frobenius.tolist(),
        )
        scores.append(of_sequence)
    return scores


def mean_by_kind(scores: Sequence[Score]) -> dict[str, float]:
    """Metrics `probe/<kind>/logp` etc.: means over the training pairs' rows of each kind."""
    groups = grouped((score.kind, score) for score in scores if score.split == "train")
    means: dict[str, float] = {}
    for kind, members in groups.items():
        total = math.fsum(score.logp for score in members)
        means[f"probe/{kind}/logp"] = total / len(members)
        means[f"probe/{kind}/logp_per_token"] = total / _tokens(members)
    chosen = [score for score in groups.get("chosen", []) if score.argmax_logp is not None]
    if chosen:
        argmax = math.fsum(score.argmax_logp or 0.0 for score in chosen) / len(chosen)
        outside = math.fsum(score.outside_logmass or 0.0 for score in chosen)
        means[f"probe/{ARGMAX}/logp"] = argmax
        # Geometric mean over tokens: summed log-mass would grow with the answers' length.
        means[f"probe/{ARGMAX}/outside_mass"] = math.exp(outside / _tokens(chosen))
        means["squeeze/gap"] = argmax - means["probe/chosen/logp"]
    return means


def _tokens(scores: Iterable[Score]) -> int:
    return max(sum(score.tokens for score in scores), 1)
