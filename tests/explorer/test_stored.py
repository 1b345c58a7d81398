"""What the ledger has stored of single answers and of means, as lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dynolab.data.rows import ProbeRow, Split
from dynolab.explorer.stored import lines_to_answer, lines_to_means
from dynolab.report.inputs.ledger import Ledger
from tests.report.ledgers import write_ledger


def of_split(ledger: Ledger, split: Split) -> Ledger:
    """The same ledger, of answers of another split."""
    accounts = (
        replace(account, row=account.row.model_copy(update={"split": split}))
        for account in ledger.accounts
    )
    return replace(ledger, accounts=tuple(accounts))


def answer(split: Split, kind: str = "chosen") -> ProbeRow:
    return ProbeRow(
        pair_id="b", split=split, kind=kind, prompt="p", response=" r", made_by="the data"
    )


@pytest.mark.parametrize(("split", "other"), [("train", "heldout"), ("heldout", "train")])
def test_an_answer_has_its_own_account(split: Split, other: Split, tmp_path: Path) -> None:
    ledger = of_split(write_ledger(tmp_path), split)
    whole = lines_to_answer(ledger, answer(split))
    assert whole is not None
    assert whole.measured.tolist() == [-2.5]
    assert {push.pair: push.total for push in whole.pushers(0)} == {"a": -3.5, "c": -1.0, "b": 2.0}
    step = lines_to_answer(ledger, answer(split), 1)
    assert step is not None and step.measured.tolist() == [1.0]
    assert lines_to_answer(ledger, answer(other)) is None
    assert lines_to_answer(ledger, answer(split, "rejected")) is None
    assert lines_to_answer(ledger, answer(split), 7) is None  # an address may name any step


def test_sums_over_sampled_steps_are_no_accounts(tmp_path: Path) -> None:
    ledger = write_ledger(tmp_path)
    means = lines_to_means(ledger)
    assert means is not None and [row.name for row in means[0]] == ["train/chosen"]
    sampled = replace(ledger, summary=ledger.summary.model_copy(update={"every": 2}))
    assert lines_to_means(sampled) is None and lines_to_answer(sampled, answer("train")) is None
