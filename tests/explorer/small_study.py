"""A study of two small trainings, opened as the explorer opens one, and what its views say."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, ProbeRow, read_rows
from dynolab.explorer.page import answers, pairs, what_if
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.forces import PolicyFunction
from dynolab.results.ledger_reader import LedgerReader
from dynolab.training.step_record import RecordCache
from models.language import load_language_model, load_tokenizer
from tests.report.ledgers import write_ledger
from tests.training.small import make_files, run_small, settings

STEPS = [0, 3]


def small_study(folder: Path) -> Study:
    """Two trainings with recorded steps and without a ledger."""
    make_files(folder)
    trainings = {}
    for name, beta in (("preference", 0.1), ("sft", 0.5)):
        config = settings(
            objective={"name": "dpo", "beta": beta}, record_steps=STEPS, checkpoint_every=0, steps=4
        )
        output = run_small(folder, folder / name, config).output
        trainings[name] = Training(
            name=name,
            result=f"preference/{name}",
            objective=config.objective,
            folder=output,
            watched=tuple(read_rows(folder / "probes.jsonl", ProbeRow)),
            load=partial(_loaded, output / "model"),
            score=_unused,
            ledger=None,
            records=RecordCache(folder / "cache"),
            cache=folder / "kept",
        )
    pairs = {row.id: row for row in read_rows(folder / "train.jsonl", Example)}
    return Study("name", "report/0", trainings, pairs, "data/0")


def alone(study: Study, **changes: Any) -> Study:
    """The preference training alone, with changes; nothing is computed or kept yet."""
    own = study.training("preference")
    fresh = replace(own, cache=own.cache / "none", _steps={}, **changes)
    return replace(study, trainings={"preference": fresh})


def ledger_of(study: Study, folder: Path) -> LedgerReader:
    """An account of the answer that fell most: −3.5, +2 and −1 nats by three pairs of the study."""
    row = study.training("preference").answers["chosen"][0].row
    known = write_ledger(folder)
    ids = dict(zip("abc", study.pairs, strict=False))
    accounts = tuple(
        replace(own, row=own.row.model_copy(update={"name": row.pair_id, "pairs": (row.pair_id,)}))
        if own.row.single
        else own
        for own in known.accounts
    )
    return replace(
        known, accounts=accounts, example=np.array([ids[name] for name in known.example.tolist()])
    )


def view(study: Study, state: State) -> str:
    """All that a view says, once what it waits for is computed."""
    training = study.training(state.training)
    steps, _ = training.computable()
    if state.view == "answers":
        return text_of(answers.shown(study, state, dark=False))
    for step in steps:
        training.lines(step, state.kind, state.asked)
        training.lines(step, state.kind, state.under(training))
    if state.view == "pairs":
        return text_of([pairs.listed(study, state), pairs.shown(study, state)])
    parts = [what_if.listed(study, state), what_if.shown(study, state, False)]
    return text_of(parts)


def text_of(part: Any) -> str:
    """All that a component says."""
    if isinstance(part, (list, tuple)):
        return " ".join(map(text_of, part))
    if hasattr(part, "to_plotly_json"):
        return text_of(part.to_plotly_json()["props"].get("children", ""))
    return "" if part is None else str(part)


def _loaded(folder: Path) -> tuple[PolicyFunction, Encoder]:
    tokenizer = load_tokenizer(str(folder))
    policy = PolicyFunction(load_language_model(str(folder), tokenizer=tokenizer))
    return policy, Encoder(tokenizer, 48, "drop")


def _unused(*_: object) -> Any:
    raise AssertionError("every pair is in a batch")
