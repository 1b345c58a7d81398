"""Which ranking of the pairs, made before DPO, foresees whose chosen answer falls, seed by seed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from dynolab.audit.audit import audit_pairs
from dynolab.audit.foresight import foresight
from dynolab.data.encode import Encoder
from dynolab.data.sources.load import load_data
from dynolab.forces import PolicyFunction
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.objectives import build_objective
from dynolab.results.audit import ChosenChange
from dynolab.training.reference import score_responses
from models.language import context_length, load_language_model, load_tokenizer
from tests.study.arms import OFF_POLICY, SFT, study_parameters
from tests.study.findings import WORKERS, Finding


def foresight_findings(seeds: Sequence[int], folder: Path) -> list[Finding]:
    """Rank correlation and AUC of every ranking, from the folders that `measure_seeds` filled."""
    pool = ProcessPoolExecutor(
        WORKERS,
        multiprocessing.get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    with pool:
        found = list(pool.map(foreseen, seeds, [folder / f"seed-{seed}" for seed in seeds]))
    return [Finding(name, tuple(one[name] for one in found)) for name in found[0]]


def foreseen(seed: int, place: Path) -> dict[str, float]:
    """Of one seed: the finetuned model audits, the model after DPO says what came."""
    parameters = study_parameters(seed)
    data = load_data(parameters.data)
    before = load_language_model(place / SFT / "model")
    tokenizer = load_tokenizer(place / SFT / "model")
    encoder = Encoder(tokenizer, context_length(before), "error")
    train, held = encoder.examples(data.pairs), encoder.examples(data.heldout)
    objective: Any = build_objective(parameters.preference.objective)
    rows = audit_pairs(PolicyFunction(before), train, objective, heldout=held)
    after = ResponseLogits(load_language_model(place / OFF_POLICY / "model"))
    scores = score_responses(after, [one.chosen for one in (*train, *held)], 0, 16)
    changes = [
        ChosenChange(
            pair_id=row.pair_id, split=row.split, change=float(logps.sum()) - row.chosen_logp
        )
        for row, logps in zip(rows, scores, strict=True)
    ]
    return {
        f"foreseen on {one.split} pairs by {one.ranking}: {name}": value
        for one in foresight(rows, changes)
        for name, value in (("ρ", one.spearman), ("AUC", one.auc))
    }
