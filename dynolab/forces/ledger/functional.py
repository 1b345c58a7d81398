"""What a ledger accounts for: weighted sums of answers' log-probabilities, and their slopes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from dynolab.data.batches import TokenBatch, by_length
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import ProbeRow, Split, first_pairs
from dynolab.errors import ConfigError
from dynolab.forces.function.views import View
from dynolab.forces.function.weights import Weights
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.map.terms import TokenTerms, token_terms
from dynolab.grouping import grouped
from dynolab.results.ledger import FunctionalRow
from dynolab.results.study import ARGMAX


@dataclass(frozen=True)
class Term:
    """`weight · Σ_l log π(y_l | x, y_<l)` of one answer.

    `likeliest`: at every position of the answer the token that the policy at hand finds likeliest
    takes the place of the answer's own (y*, greedy under teacher forcing).
    """

    sequence: Encoded
    weight: float = 1.0
    likeliest: bool = False


@dataclass(frozen=True)
class Functional:
    """`q(θ)`: the sum of its terms, in nats."""

    name: str
    terms: tuple[Term, ...]

    @classmethod
    def mean(
        cls, name: str, sequences: Sequence[Encoded], *, likeliest: bool = False
    ) -> Functional:
        """The mean log-probability of some answers."""
        weight = 1 / len(sequences)
        return cls(name, tuple(Term(sequence, weight, likeliest) for sequence in sequences))


@dataclass(frozen=True)
class Slopes:
    """Functionals and their gradients at some weights, one row each.

    `terms`: A and what belongs to it of single answers, by the number of their functional.
    """

    values: Float[Tensor, " functionals"]
    gradients: Float[Tensor, "functionals parameters"]
    terms: Mapping[int, TokenTerms] = field(default_factory=dict)


def slopes_of(
    functionals: Sequence[Functional],
    gradients: GroupedGradients,
    at: Weights,
    *,
    batch_tokens: int | None = None,
    terms_of: Collection[int] = (),
    into: Float[Tensor, "functionals parameters"] | None = None,
) -> Slopes:
    """One forward and one backward of every term.

    **Arguments:**

    - `batch_tokens`: bound of sequences × padded length of one forward; default: the policy's.
    - `terms_of`: numbers of the functionals of one answer whose tokens' terms are wanted.
    - `into`: what the gradients are added to, by default zeros.

    Where the likeliest token changes between two steps q has a kink; the gradient is that of the
    token that is likeliest now.
    """
    policy = gradients.policy
    listed = [(number, term) for number, q in enumerate(functionals) for term in q.terms]
    values = torch.zeros(len(functionals), dtype=torch.float64, device=policy.device)
    rows = gradients.rows(at, len(functionals)) if into is None else into
    token_terms_of: dict[int, TokenTerms] = {}
    sequences = [term.sequence for _, term in listed]
    for members in by_length(sequences, batch_tokens or policy.batch_tokens):
        numbers, terms = zip(*(listed[member] for member in sorted(members)), strict=True)
        batch = policy.batch([term.sequence for term in terms])
        group = torch.tensor(numbers, device=policy.device)

        def weighted(
            logits: Float[Tensor, "tokens vocabulary"],
            batch: TokenBatch = batch,
            terms: Sequence[Term] = terms,
            numbers: Sequence[int] = numbers,
        ) -> Float[Tensor, " tokens"]:
            for place in (place for place, number in enumerate(numbers) if number in terms_of):
                of_term = batch.sequence == place
                token_terms_of[numbers[place]] = token_terms(
                    logits.detach()[of_term], batch.token[of_term]
                )
            likeliest = torch.tensor([term.likeliest for term in terms], device=batch.token.device)
            weights = torch.tensor([term.weight for term in terms], dtype=logits.dtype)
            best = logits.detach().argmax(-1)
            tokens = torch.where(likeliest[batch.sequence], best, batch.token)
            logps = View(tokens[:, None]).logps(logits).squeeze(-1)
            return weights.to(logits.device)[batch.sequence] * logps

        token_values = gradients.add(at, batch, weighted, group, into=rows)
        values.index_add_(0, group[batch.sequence], token_values.double())
    return Slopes(values, rows, token_terms_of)


WatchedFunctional = tuple[FunctionalRow, Functional]


def kind_means(rows: Sequence[ProbeRow], encoder: Encoder, pairs: int) -> list[WatchedFunctional]:
    """The mean over the answers of every kind of the first `pairs` pairs of each split.

    Beside the chosen answers it has the policy's own likeliest tokens, kind `argmax`. Answers
    that do not fit the model's context are left out.
    """
    members = grouped(((row.split, row.kind), row) for row in first_pairs(rows, pairs))
    groups = dict(members)
    for split, kind in members:
        if kind == "chosen":
            groups[split, ARGMAX] = members[split, kind]
    watched = [
        mean_of(f"{split}/{kind}", split, kind, rows_of_kind, encoder)
        for (split, kind), rows_of_kind in groups.items()
    ]
    return [functional for functional in watched if functional is not None]


def single_answers(
    rows: Sequence[ProbeRow], encoder: Encoder, split: Split, pair_ids: Sequence[str]
) -> list[WatchedFunctional]:
    """The chosen answers of some pairs of a split, each for itself."""
    chosen = {row.pair_id: row for row in rows if row.split == split and row.kind == "chosen"}
    watched = [mean_of(name, split, "chosen", [chosen[name]], encoder) for name in pair_ids]
    return [functional for functional in watched if functional is not None]


def mean_of(
    name: str, split: Split, kind: str, rows: Sequence[ProbeRow], encoder: Encoder
) -> WatchedFunctional | None:
    """The mean over some rows' answers; None if none of them fits the context."""
    encoded = [(row, encoder.probe(row)) for row in rows]
    answers = [(row.pair_id, sequence) for row, sequence in encoded if sequence is not None]
    if not answers:
        return None
    ids, sequences = zip(*answers, strict=True)
    functional = Functional.mean(name, sequences, likeliest=kind == ARGMAX)
    return FunctionalRow(name=name, split=split, kind=kind, pairs=ids), functional


def functional_of(row: FunctionalRow, rows: Sequence[ProbeRow], encoder: Encoder) -> Functional:
    """The functional of a ledger's row, from the same watched rows."""
    kind = "chosen" if row.kind == ARGMAX else row.kind
    row_of = {
        answer.pair_id: answer
        for answer in rows
        if (answer.split, answer.kind) == (row.split, kind)
    }
    members = [row_of[pair] for pair in row.pairs]
    watched = mean_of(row.name, row.split, row.kind, members, encoder)
    assert watched is not None, "the ledger's answers fit the model's context"
    return watched[1]


def training_means(
    kinds: Collection[str], rows: Sequence[ProbeRow], encoder: Encoder, pairs: int, field: str
) -> list[WatchedFunctional]:
    """The means of `kind_means` of some kinds, of training pairs.

    **Arguments:** `field`: the setting that names the kinds, for messages.

    **Raises:** `ConfigError` for a kind that is not watched, or of which no answer fits.
    """
    check_kinds(kinds, rows, field)
    training = [row for row in rows if row.split == "train"]
    means = [
        functional
        for functional in kind_means(training, encoder, pairs)
        if functional[0].kind in kinds
    ]
    lacking = set(kinds) - {row.kind for row, _ in means}
    if lacking:
        raise ConfigError(
            field,
            min(lacking),
            "its answers are longer than the model's context; watch shorter ones, or more pairs",
        )
    return means


def check_kinds(kinds: Collection[str], rows: Sequence[ProbeRow], field: str) -> None:
    """Raises `ConfigError` for a kind that no watched training row has."""
    choices = list(dict.fromkeys(row.kind for row in rows if row.split == "train"))
    if "chosen" in choices:
        choices.append(ARGMAX)
    for kind in kinds:
        if kind not in choices:
            there = (
                f"choose of {', '.join(choices)}" if choices else "watch answers: data.probe_pairs"
            )
            raise ConfigError(field, kind, f"no watched training answer is of this kind; {there}")


def sampled_steps(steps: Sequence[int], every: int, seed: int) -> dict[int, int]:
    """The first and the last step, and one drawn of every `every` steps between them.

    A total over all steps is estimated by Σ weight · value, without bias
    (`dynolab.statistics.stratified_total`).

    **Arguments:** `steps`: rising; `every`: 1 takes all.

    **Returns:** each step's weight: the number of steps it stands for.
    """
    if every == 1 or len(steps) <= 2:
        return dict.fromkeys(steps, 1)
    drawn = np.random.default_rng(seed)
    weights = {steps[0]: 1}
    inner = steps[1:-1]
    for start in range(0, len(inner), every):
        stratum = inner[start : start + every]
        weights[int(drawn.choice(stratum))] = len(stratum)
    return {**weights, steps[-1]: 1}


@dataclass(frozen=True)
class Waiting:
    """A folder with a file for each row of each kind: `sensitivity-0003.safetensors`.

    Any rows can be read together, however they were written. A file is replaced, never changed, so
    that a link to it keeps what it had.
    """

    folder: Path

    def keep(self, kind: str, rows: Sequence[int], of: Float[Tensor, "rows parameters"]) -> None:
        """Writes rows, in place of older ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, row in zip(rows, of, strict=True):
            unfinished = self.folder / "unfinished"
            save_file({kind: row.cpu()}, unfinished)
            unfinished.replace(self._file(kind, number))

    def take(
        self, kind: str, rows: Sequence[int], device: torch.device
    ) -> Float[Tensor, "rows parameters"] | None:
        """Reads rows; None where there are none of this kind."""
        if not self._file(kind, rows[0]).exists():
            return None
        taken: Float[Tensor, "rows parameters"] | None = None
        for place, number in enumerate(rows):
            row = load_file(self._file(kind, number))[kind]
            if taken is None:
                taken = torch.empty(len(rows), len(row), dtype=row.dtype, device=device)
            taken[place] = row
        return taken

    def link(self, kind: str, folder: Path) -> None:
        """Puts the files of a kind into another folder of the same disk."""
        for file in self.folder.glob(f"{kind}-*.safetensors"):
            try:
                os.link(file, folder / file.name)
            except OSError:  # another disk, or one without links
                shutil.copyfile(file, folder / file.name)

    def _file(self, kind: str, row: int) -> Path:
        return self.folder / f"{kind}-{row:04d}.safetensors"
