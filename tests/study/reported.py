"""What is found over seeds and not expected, from the folders that `measure_seeds` filled.

Whether the same answers stay coupled: ranks of ‖K‖ through SFT at three rates, and into DPO. And
which ranking of the pairs, made before DPO, foresees whose chosen answer falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dynolab.audit.audit import audit_pairs
from dynolab.audit.foresight import foresight
from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.data.sources.load import load_data
from dynolab.forces import KernelSizes, PolicyFunction, kernel_sizes
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.objectives import build_objective
from dynolab.results.audit import ChosenChange
from dynolab.statistics import rank_correlation
from dynolab.training.reference import score_responses
from dynolab.training.step_record import StepRecord
from models.language import context_length, load_language_model, load_tokenizer
from tests.study.arms import OFF_POLICY, SFT, finetune, study_parameters
from tests.study.findings import Finding, in_processes, places_of

RATES = {"÷4": 0.25, "×1": 1.0, "×4": 4.0}
"""SFT's learning rate, relative to the study's."""
ANSWERS = 12


def kernel_findings(seeds: Sequence[int], folder: Path) -> list[Finding]:
    """Rank correlations of every seed, from the folders that `measure_seeds` filled."""
    found = in_processes(_correlations, seeds, places_of(seeds, folder))
    return [
        Finding(f"ranks of ‖K‖, {name}", tuple(one[name] for one in found)) for name in found[0]
    ]


def _correlations(seed: int, place: Path) -> dict[str, float]:
    models = {"base": place / "base", SFT: place / SFT, OFF_POLICY: place / OFF_POLICY}
    sft = study_parameters(seed).sft
    for name, factor in RATES.items():
        if factor != 1:
            rate = factor * sft.optimizer.learning_rate
            optimizer = sft.optimizer.model_copy(update={"learning_rate": rate})
            config = sft.model_copy(update={"optimizer": optimizer})
            models[name] = finetune(config, place / "base", place / "world", place / f"sft {name}")
    sizes = {name: _sizes(model, place / "world") for name, model in models.items()}
    half_way = {
        name: _sizes(models[name], place / "world", half_way=True)
        for name in models
        if name not in ("base", OFF_POLICY)
    }
    sft_at = {name: SFT if factor == 1 else name for name, factor in RATES.items()}

    def correlation(*two: KernelSizes) -> float:
        different = ~torch.eye(len(two[0].centred), dtype=torch.bool).numpy()
        return float(rank_correlation(*(sizes.centred[different] for sizes in two)))

    return {
        **{
            f"base to SFT at {name} the rate": correlation(sizes["base"], sizes[label])
            for name, label in sft_at.items()
        },
        **{
            f"half of SFT to its end at {name} the rate": correlation(half_way[label], sizes[label])
            for name, label in sft_at.items()
        },
        "SFT to DPO": correlation(sizes[SFT], sizes[OFF_POLICY]),
    }


def _sizes(trained: Path, world: Path, *, half_way: bool = False) -> KernelSizes:
    """‖K‖ between the chosen answers of the first training prompts, at the end or half-way."""
    tokenizer = load_tokenizer(trained / "model")
    language_model = load_language_model(trained / "model")
    encoder = Encoder(tokenizer, context_length(language_model), "error")
    rows = [row for row in read_rows(world / "probes.jsonl", ProbeRow) if row.kind == "chosen"]
    answers = [encoder.response(row.pair_id, row.prompt, row.response) for row in rows[:ANSWERS]]
    kept = [answer for answer in answers if answer is not None]
    (recorded,) = (trained / "forces").iterdir() if half_way else (None,)
    at = StepRecord.load(recorded).before if recorded else None
    return kernel_sizes(PolicyFunction(language_model), kept, kept, at=at)


def foresight_findings(seeds: Sequence[int], folder: Path) -> list[Finding]:
    """Rank correlation and AUC of every ranking."""
    found = in_processes(foreseen, seeds, places_of(seeds, folder))
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
