"""What a ledger accounts for: which sums of answers, and at which steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow, Split, first_pairs
from dynolab.errors import ConfigError
from dynolab.forces.ledger.functional import Answers, Functional, WatchedFunctional
from dynolab.forces.ledger.measured import NO_SOURCE, Source, measured_means
from dynolab.forces.ledger.measures import likeliest, log_likelihood
from dynolab.grouping import grouped
from dynolab.results.ledger import MEASURED, FunctionalRow
from dynolab.results.study import ARGMAX


def kind_means(rows: Sequence[ProbeRow], encoder: Encoder, pairs: int) -> list[WatchedFunctional]:
    """The mean over the answers of every kind of the first `pairs` pairs of each split.

    Beside the chosen answers it has the policy's own likeliest tokens, kind `argmax`. Answers
    that do not fit the model's context are left out.
    """
    by_kind = grouped(((row.split, row.kind), row) for row in first_pairs(rows, pairs))
    for split, kind in list(by_kind):
        if kind == "chosen":
            # The same answers, whose tokens `mean_of` replaces by the likeliest ones.
            by_kind[split, ARGMAX] = by_kind[split, kind]
    means = []
    for (split, kind), rows_of_kind in by_kind.items():
        means += mean_of(f"{split}/{kind}", kind, encoded_answers(rows_of_kind, encoder))
    return means


def single_answers(
    rows: Sequence[ProbeRow], encoder: Encoder, split: Split, pair_ids: Sequence[str]
) -> list[WatchedFunctional]:
    """The chosen answers of some pairs of a split, each for itself."""
    chosen = {row.pair_id: row for row in rows if row.split == split and row.kind == "chosen"}
    means = []
    for name in pair_ids:
        means += mean_of(name, "chosen", encoded_answers([chosen[name]], encoder))
    return means


def encoded_answers(rows: Sequence[ProbeRow], encoder: Encoder) -> Answers:
    """The answers that fit the model's context."""
    answers = [(row, encoder.probe(row)) for row in rows]
    return [(row, sequence) for row, sequence in answers if sequence is not None]


def mean_of(name: str, kind: str, answers: Answers) -> list[WatchedFunctional]:
    """The mean over answers of a split, in a list to add to others; empty without answers."""
    if not answers:
        return []
    rows, sequences = zip(*answers, strict=True)
    pairs = tuple(row.pair_id for row in rows)
    watched = FunctionalRow(name=name, split=rows[0].split, kind=kind, pairs=pairs)
    measure = likeliest if kind == ARGMAX else log_likelihood
    return [(watched, Functional.mean(name, sequences, measure))]


def functional_of(row: FunctionalRow, rows: Sequence[ProbeRow], encoder: Encoder) -> Functional:
    """The functional of a ledger's row, from the same watched rows."""
    kind = "chosen" if row.kind == ARGMAX else row.kind
    of_kind = {
        answer.pair_id: answer
        for answer in rows
        if (answer.split, answer.kind) == (row.split, kind)
    }
    members = [of_kind[pair] for pair in row.pairs]
    # All of them fitted when the row was made, so that there is a mean.
    ((_, functional),) = mean_of(row.name, row.kind, encoded_answers(members, encoder))
    return functional


def training_means(
    kinds: Collection[str],
    rows: Sequence[ProbeRow],
    encoder: Encoder,
    pairs: int,
    field: str,
    source: Source = NO_SOURCE,
) -> list[WatchedFunctional]:
    """The means of `kind_means` and `measured_means` of some kinds, of training pairs.

    **Arguments:** `field`: the setting that names the kinds, for messages; `source`: what measured
    kinds need.

    **Raises:** `ConfigError` for a kind that is not watched, or of which no answer fits, and as
    `measured_means` does.
    """
    check_kinds(kinds, rows, field)
    training = [row for row in rows if row.split == "train"]
    means = [mean for mean in kind_means(training, encoder, pairs) if mean[0].kind in kinds]
    lacking = set(kinds) - {row.kind for row, _ in means} - MEASURED.keys()
    if lacking:
        raise ConfigError(
            field,
            min(lacking),
            "its answers are longer than the model's context; watch shorter ones, or more pairs",
        )
    answers = encoded_answers(first_pairs(training, pairs), encoder)
    return means + measured_means(kinds, answers, source, field)


def check_kinds(kinds: Collection[str], rows: Sequence[ProbeRow], field: str) -> None:
    """Raises `ConfigError` for a kind that no watched training row has, nor is measured at them."""
    choices = list(dict.fromkeys(row.kind for row in rows if row.split == "train"))
    if "chosen" in choices:
        choices += [ARGMAX, *MEASURED]
    choose = f"choose of {', '.join(choices)}" if choices else "watch answers: data.probe_pairs"
    for kind in kinds:
        if kind not in choices:
            problem = "no watched training answer is of this kind"
            raise ConfigError(field, kind, f"{problem}; {choose}")


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
