"""What words alone say that each training pair did to an answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dynolab.audit.word_overlap import shared_words
from dynolab.data.rows import ProbeRow
from dynolab.results.ledger_reader import LedgerReader
from dynolab.results.study import ARGMAX


def word_totals(ledger: LedgerReader, probes: Sequence[ProbeRow]) -> dict[tuple[str, str], float]:
    """By a functional's and an example's name, how much more of the functional's words are in the
    example's chosen than in its rejected answer.

    With J(a, b) = |a ∩ b| / |a ∪ b| over words, and the mean over the functional's answers y:

        mean_y [J(y⁺, y) − J(y⁻, y)]

    It has the sign of a ledger's lines: a chosen answer lifts what resembles it, and a rejected one
    lowers it.
    """
    responses = {(str(row.split), row.kind, row.pair_id): row.response for row in probes}
    totals = {}
    for account in ledger.accounts:
        row = account.row
        kind = "chosen" if row.kind == ARGMAX else row.kind
        answers = [set(responses[row.split, kind, pair].split()) for pair in row.pairs]
        for name in ledger.examples:
            example = ledger.rows[name]
            chosen = set(example.chosen.split())
            rejected = set((example.rejected or "").split())
            lifts = [
                shared_words(chosen, answer) - shared_words(rejected, answer) for answer in answers
            ]
            totals[row.name, name] = float(np.mean(lifts))
    return totals
