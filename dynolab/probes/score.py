"""Log-likelihood of probe rows under a model, and what it thinks of their every token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dynolab.data.batches import TokenBatch
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.prefixes import collate_prefixes, plan_prefixes
from dynolab.data.rows import ProbeRow
from dynolab.errors import ConfigError
from dynolab.likelihood.token_facts import TokenFacts, token_facts
from dynolab.likelihood.token_logps import causal_model, goes_on_from_prompts
from dynolab.results.study import Score, TokenScores

if TYPE_CHECKING:
    from dynolab.likelihood.token_logps import ResponseLogits

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
    """Scores rows once: `ProbeScorer`, whose arguments these are."""
    scorer = ProbeScorer(model, rows, encoder, batch_tokens=batch_tokens, share=share)
    return scorer.score(device=device, per_token=per_token)


class ProbeScorer:
    """Probe rows in batches, to be scored again and again as the model learns.

    Rows that the overlong rule drops have no score. Rows of one prompt share its forward, and
    where it is cut they see the same part of it.

    **Arguments:**

    - `model`: a `ResponseLogits`, or what an engine wrapped around one.
    - `encoder`: how rows are encoded; its counts are left alone.
    - `batch_tokens`: bound of rows × padded length of one forward; a longer row goes alone.
    - `share`: `(rank, world)`: only this rank's run of rows is scored here; the ranks' results
      joined in rank order are in the rows' order.

    **Raises:** `ConfigError` where the encoder's tokenizer gives tokens that the model lacks.
    """

    def __init__(
        self,
        model: nn.Module | ResponseLogits,
        rows: Sequence[ProbeRow],
        encoder: Encoder,
        *,
        batch_tokens: int,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self.model = model
        own = Encoder(encoder.tokenizer, encoder.max_length, encoder.overlong)
        encoded = zip(rows, own.probes(rows), strict=True)
        kept = [(row, sequence) for row, sequence in encoded if sequence is not None]
        kept = _share(kept, *share)
        self.rows = [row for row, _ in kept]
        """This rank's rows that have a score."""
        sequences = [sequence for _, sequence in kept]
        _check_vocabulary(model, sequences)
        tokenizer = encoder.tokenizer
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        plan = plan_prefixes(sequences, batch_tokens, shared=goes_on_from_prompts(model))
        self._batches = [
            collate_prefixes(sequences, together, int(pad), batch_tokens) for together in plan
        ]

    def score(
        self, *, device: torch.device | str | None = None, per_token: bool = False
    ) -> list[Score]:
        """Scores of the rows, in their order, without gradient and in eval mode.

        The mode is put back.

        **Arguments:**

        - `device`: where the model computes; by default where its first parameter lies.
        - `per_token`: whether scores bring `token_scores`.
        """
        where = device if device is not None else next(self.model.parameters()).device
        scores: dict[int, Score] = {}
        training = self.model.training
        self.model.eval()
        try:
            for batch, members in self._batches:
                rows = [self.rows[number] for number in members]
                batch_scores = _score(self.model, rows, batch.to(where), per_token)
                scores |= dict(zip(members, batch_scores, strict=True))
        finally:
            self.model.train(training)
        return [scores[number] for number in range(len(self.rows))]


def _check_vocabulary(model: Any, sequences: Sequence[Encoded]) -> None:
    """Refuses token ids that the model's embedding lacks: on a GPU they would abort the process."""
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
def _score(
    model: nn.Module, rows: Sequence[ProbeRow], batch: TokenBatch, per_token: bool
) -> list[Score]:
    table = model(batch, _read).double()
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
    return [
        Score(
            pair_id=row.pair_id,
            split=row.split,
            kind=row.kind,
            tokens=n,
            logp=logp,
            argmax_logp=best,
            outside_logmass=outside,
            outside_mass=mass / n,
            argmax_tokens_equal=same / n,
            log_rank=rank / n,
            entropy=entropy / n,
            energy=energy / n,
            a_frobenius=(square / n) ** 0.5,
            token_scores=each,
        )
        for row, n, each, (logp, best, outside, mass, same, rank, entropy, energy, square) in zip(
            rows, numbers, tokens, sums, strict=True
        )
    ]


def _read(
    logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch
) -> Float[Tensor, "tokens facts"]:
    return token_facts(logits, batch.token).table()


def _token_scores(
    batch: TokenBatch, table: Float[Tensor, "tokens facts"], lengths: list[int]
) -> list[TokenScores]:
    """The facts of every sequence's tokens: these follow each other, sequence by sequence."""
    parts = zip(batch.token.split(lengths), table.split(lengths), strict=True)
    scores = []
    for token, part in parts:
        facts = TokenFacts.of_table(part)
        scores.append(
            TokenScores(
                token=token.tolist(),
                argmax=facts.argmax.long().tolist(),
                rank=facts.rank.long().tolist(),
                **{
                    name: getattr(facts, name).tolist()
                    for name in (
                        "logp",
                        "argmax_logp",
                        "outside_logmass",
                        "entropy",
                        "energy",
                        "a_frobenius",
                    )
                },
            )
        )
    return scores
