"""Whether the same answers stay coupled: ranks of ‖K‖ through SFT at three rates, and into DPO."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.forces import KernelSizes, PolicyFunction, kernel_sizes
from dynolab.statistics import rank_correlation
from dynolab.training.step_record import StepRecord
from models.language import context_length, load_language_model, load_tokenizer
from tests.study.arms import OFF_POLICY, SFT, finetune, study_parameters
from tests.study.findings import WORKERS, Finding

RATES = {"÷4": 0.25, "×1": 1.0, "×4": 4.0}
"""SFT's learning rate, relative to the study's."""
ANSWERS = 12


def kernel_findings(seeds: Sequence[int], folder: Path) -> list[Finding]:
    """Rank correlations of every seed, from the folders that `measure_seeds` filled."""
    pool = ProcessPoolExecutor(
        WORKERS,
        multiprocessing.get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    with pool:
        found = list(pool.map(_correlations, seeds, [folder] * len(seeds)))
    return [
        Finding(f"ranks of ‖K‖, {name}", tuple(one[name] for one in found)) for name in found[0]
    ]


def _correlations(seed: int, folder: Path) -> dict[str, float]:
    place = folder / f"seed-{seed}"
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
