"""Sums of lines, against sums written out line by line, and the lines that a ledger has stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dynolab.data.batches import draw
from dynolab.data.rows import ProbeRow, Split
from dynolab.explorer.lines import (
    CHOSEN,
    REJECTED,
    Lines,
    lines_to_answer,
    lines_to_means,
)
from dynolab.results import ledger_reader
from tests.report.ledgers import write_ledger

PAIRS, ANSWERS = ("a", "b", "c"), 4


def lines(seed: int, steps: tuple[int, ...] = (2, 5)) -> Lines:
    """Every pair's two answers at every step, with a measured change that they nearly explain."""
    numbers = np.random.default_rng(seed)
    rows = [(step, pair, side) for step in steps for pair in PAIRS for side in (CHOSEN, REJECTED)]
    step, pair, side = (np.array(column) for column in zip(*rows, strict=True))
    nats, decay = numbers.normal(size=(len(rows), ANSWERS)), numbers.normal(size=ANSWERS)
    measured = nats.sum(0) + decay + 1e-3 * numbers.normal(size=ANSWERS)
    return Lines(step, pair, side, nats, measured, {"weight decay": decay})


def line_by_line(
    own: Lines, without: tuple[str, ...] = (), dose: float = 1.0, instead: Lines | None = None
) -> list[float]:
    """What would be, with every line weighed by itself: those of remaining pairs count more by the
    places that are free, a place being a pair's two lines of a step."""
    changed = []
    free = sum(pair in without for pair in own.pair)
    more = 1 + free / (len(own.pair) - free) if free < len(own.pair) else 1.0
    for answer in range(own.nats.shape[1]):
        total = own.measured[answer]
        for row, (pair, side) in enumerate(zip(own.pair, own.side, strict=True)):
            weight = 0.0 if pair in without else more * (dose if side == REJECTED else 1.0)
            new = own if instead is None else instead
            total += weight * new.nats[row, answer] - own.nats[row, answer]
        changed.append(total)
    return changed


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "change",
    [
        ((), 1.0),
        (("b",), 1.0),
        ((), 0.3),
        (("a", "c"), 0.0),
        (("not there",), 1.0),
        (PAIRS, 1.0),
    ],
)
def test_what_if_is_the_sum_of_its_lines(seed: int, change: tuple[tuple[str, ...], float]) -> None:
    own, other = lines(seed), lines(seed + 100)
    assert own.what_if(*change) == pytest.approx(line_by_line(own, *change), abs=1e-12)
    under = own.what_if(*change, other)
    assert under == pytest.approx(line_by_line(own, *change, other), abs=1e-12)


@pytest.mark.parametrize("gone", [{"a"}, {"b", "c"}, {"a", "b", "c"}, {"not there"}])
def test_places_of_pairs_that_are_left_out_are_filled(
    gone: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_reader, "PASSES", 1)
    ledger = write_ledger(tmp_path)
    remaining = {"a", "b", "c"} - gone
    for account in ledger.accounts:
        plain = -sum(
            nats for pair, nats in zip(ledger.example, account.lines, strict=True) if pair in gone
        )
        means = [account.lines[ledger.example == pair].sum() for pair in remaining]
        filled = plain + (3 - len(remaining)) * float(np.mean(means)) if means else plain
        name = account.row.name
        for refilled, change in ((True, filled), (False, plain)):
            # An answer at −7.5 has no room for 8 nats.
            would = np.inf if account.end + change > 0 else change
            assert ledger.without(gone, refilled=refilled)[name] == pytest.approx(would)


def test_what_steps_undid_or_rows_did_once_has_no_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = write_ledger(tmp_path)
    assert np.isnan(list(ledger.without({"b"}).values())).all()  # each row is there once
    monkeypatch.setattr(ledger_reader, "PASSES", 1)
    long = tuple(replace(account, length=100.0) for account in ledger.accounts)
    undone = replace(ledger, accounts=(ledger.accounts[0], *long[1:]))
    forecasts = list(undone.without({"b"}).values())
    assert np.isfinite(forecasts[0]) and np.isnan(forecasts[1])
    assert undone.without({"b"}, refilled=False) == ledger.without({"b"}, refilled=False)


def test_another_order_changes_what_rows_with_one_place_more_do() -> None:
    def ordered(seed: int) -> Lines:
        drawn = [(step, row) for step in range(5) for row in draw(step, 3, 6, seed)]
        step, pair = np.array(drawn).T
        return Lines(step, pair.astype(str), np.full(15, CHOSEN), does[pair], np.zeros(ANSWERS))

    does = np.random.default_rng(0).normal(size=(6, ANSWERS))
    sums = [ordered(seed).through(CHOSEN) for seed in range(400)]
    assert ordered(0).reordered == pytest.approx(np.std(sums, axis=0), rel=0.1)


def test_pushers_and_pushed_are_the_same_sums() -> None:
    own = lines(1)
    for answer in range(ANSWERS):
        pushers = own.pushers(answer)
        assert [push.total for push in pushers] == sorted(push.total for push in pushers)
        assert {push.example for push in pushers} == set(PAIRS)
        for push in pushers:
            assert push == own.pushed_by(push.example)[answer]
            mine = own.nats[own.pair == push.example, answer].sum()
            assert push.total == pytest.approx(mine, abs=1e-12)
            assert push.steps == (2, 5)
        chosen, rejected = (float(own.through(side)[answer]) for side in (CHOSEN, REJECTED))
        assert sum(p.from_chosen for p in pushers) == pytest.approx(chosen, abs=1e-12)
        assert sum(p.from_rejected for p in pushers) == pytest.approx(rejected, abs=1e-12)
    assert own.pushed_by("not there") == []


def test_steps_and_answers_are_put_together_and_taken_apart() -> None:
    first, second = lines(2, (1,)), replace(lines(3, (4,)), apart={"momentum": np.ones(ANSWERS)})
    both = Lines.together([first, second])
    assert both.measured == pytest.approx(first.measured + second.measured)
    assert both.apart["momentum"] == pytest.approx(np.ones(ANSWERS))
    again = both.at_step(4, second.measured)
    assert (again.nats == second.nats).all() and set(again.step) == {4}
    beside = Lines.beside([first.to(0), first.to(3)])
    assert (beside.nats == first.nats[:, [0, 3]]).all()
    assert (beside.apart["weight decay"] == first.apart["weight decay"][[0, 3]]).all()


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    own = lines(4)
    own.save(tmp_path / "lines.npz")
    again = Lines.load(tmp_path / "lines.npz")
    for name in ("step", "pair", "side", "nats", "measured"):
        assert (getattr(again, name) == getattr(own, name)).all()
    assert (again.apart["weight decay"] == own.apart["weight decay"]).all()


def answer(split: Split, kind: str = "chosen") -> ProbeRow:
    return ProbeRow(
        pair_id="b", split=split, kind=kind, prompt="p", response=" r", made_by="the data"
    )


@pytest.mark.parametrize(("split", "other"), [("train", "heldout"), ("heldout", "train")])
def test_an_answer_has_its_own_account(split: Split, other: Split, tmp_path: Path) -> None:
    ledger = write_ledger(tmp_path)
    accounts = (
        replace(account, row=account.row.model_copy(update={"split": split}))
        for account in ledger.accounts
    )
    ledger = replace(ledger, accounts=tuple(accounts))
    whole = lines_to_answer(ledger, answer(split))
    assert whole is not None
    assert whole.measured.tolist() == [-2.5]
    assert {push.example: push.total for push in whole.pushers(0)} == {
        "a": -3.5,
        "c": -1.0,
        "b": 2.0,
    }
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
