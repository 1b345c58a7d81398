"""What the arms show: each seed gives its mean over training prompts, intervals are over seeds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from dynolab.claims.study import CLAIMS, unexplained
from dynolab.claims.verdict import Measurement, on_side
from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.forces import PolicyFunction, step_forces
from dynolab.probes.paths import LearningPaths, change, learning_paths
from dynolab.results.study import ARGMAX, ForceRow, ProbeScore
from dynolab.statistics import mean_interval
from dynolab.training.step_record import StepRecord
from models.language import context_length, load_language_model, load_tokenizer
from tests.study.arms import (
    ADAMW,
    ARMS,
    FLAT,
    OFF_POLICY,
    RESAMPLED,
    SFT,
    prepare,
    study_parameters,
    train_arm,
)

WORKERS = 2
STAGES = {SFT: "sft", OFF_POLICY: "dpo"}
"""The arms whose claims are judged and whose recorded step is explained, by objective."""
UNEXPLAINED_SHARE = 0.01


@dataclass(frozen=True)
class Measured:
    """One arm of one seed; `forces` of the recorded step where they are asked for."""

    paths: LearningPaths
    forces: tuple[ForceRow, ...] = ()


@dataclass(frozen=True)
class Finding:
    """A named number of every seed, and on which side of its bound it is expected, if on any."""

    name: str
    values: tuple[float, ...]
    sign: Literal[1, -1] | None = None
    bound: float = 0.0

    @property
    def figure(self) -> Measurement:
        """The mean with its 95% t-interval over seeds."""
        interval = mean_interval(np.array(self.values))
        return on_side(self.sign or 1, self.name, interval, self.bound)

    @property
    def outcome(self) -> str:
        """As in verdicts; empty where nothing is expected."""
        return self.figure.outcome or "" if self.sign else ""


Findings = Mapping[str, Sequence[Finding]]
"""By what they show: the id of a claim, `contrast/…`, `…/forces`, or the name of an arm."""


def in_processes(work: Callable[..., Any], *arguments: Sequence[Any]) -> list[Any]:
    """A function of each row of arguments, two processes at a time, of one thread each."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(WORKERS, context, torch.set_num_threads, (1,)) as pool:
        return list(pool.map(work, *arguments))


def places_of(seeds: Sequence[int], folder: Path) -> list[Path]:
    """The folder of every seed's results."""
    return [folder / f"seed-{seed}" for seed in seeds]


def measure_seeds(seeds: Sequence[int], folder: Path) -> dict[str, list[Measured]]:
    """All arms of all seeds; by arm, in the seeds' order."""
    places = places_of(seeds, folder)
    in_processes(_prepare_seed, seeds, places)
    arms = [arm for arm in ARMS for _ in seeds]
    found = iter(in_processes(_measure_seed, arms, [*seeds] * len(ARMS), places * len(ARMS)))
    return {arm: [next(found) for _ in seeds] for arm in ARMS}


def measure(arm: str, results: Path, probes: Path) -> Measured:
    """Reads what an arm's training left."""
    paths = learning_paths(read_rows(results / "probes.jsonl", ProbeScore))
    assert paths is not None
    return Measured(paths, _forces(arm, results, probes) if arm in STAGES else ())


def summarise(measured: Mapping[str, Sequence[Measured]]) -> Findings:
    """Everything that is judged or reported."""
    findings: dict[str, Sequence[Finding]] = {
        claim.id: _over_seeds(
            [claim.measure.parts(one.paths) for one in measured[arm]], prefix=f"{claim.id}: "
        )
        for arm, stage in STAGES.items()
        for claim in CLAIMS
        if claim.training == stage
    }
    moved = {arm: [probe_changes(seed) for seed in seeds] for arm, seeds in measured.items()}
    for arm in (RESAMPLED, FLAT):
        apart = [
            ours["Δ gap"] - theirs["Δ gap"]
            for ours, theirs in zip(moved[OFF_POLICY], moved[arm], strict=True)
        ]
        findings[f"contrast/{arm}"] = [Finding(f"Δ gap, {OFF_POLICY} − {arm}", tuple(apart), 1)]
    findings[f"contrast/{ADAMW}"] = [
        # Margins differ between the optimizers, so what y* gains is told by the nat of margin.
        Finding(f"{arm}: Δ y*/Δ margin", tuple(one["Δ y*"] / one["Δ margin"] for one in moved[arm]))
        for arm in (OFF_POLICY, ADAMW)
    ]
    for arm, stage in STAGES.items():
        findings[f"{stage}/forces"] = _explanation(stage, [one.forces for one in measured[arm]])
    for arm, seeds in moved.items():
        findings[arm] = [
            Finding(f"{arm}: {name}", tuple(seed[name] for seed in seeds)) for name in seeds[0]
        ]
    return findings


def table_of(findings: Findings) -> pd.DataFrame:
    """A row for each finding, what is expected first, with every seed's number."""
    rows = [
        {
            "name": one.name,
            "expected": one.sign,
            "bound": one.bound,
            "outcome": one.outcome,
            **one.figure.interval.as_dict(),
            "values": one.values,
        }
        for group in findings.values()
        for one in group
    ]
    return pd.DataFrame(sorted(rows, key=lambda row: row["expected"] is None))


def _prepare_seed(seed: int, place: Path) -> None:
    prepare(study_parameters(seed), place)


def _measure_seed(arm: str, seed: int, place: Path) -> Measured:
    results = train_arm(arm, study_parameters(seed), place)
    return measure(arm, results, place / "world" / "probes.jsonl")


def _forces(arm: str, results: Path, probes: Path) -> tuple[ForceRow, ...]:
    """The recorded step's forces on chosen answers, y* and rejected answers."""
    (place,) = (results / "forces").iterdir()
    watched = [row for row in read_rows(probes, ProbeRow) if row.kind in ("chosen", "rejected")]
    model, tokenizer = load_language_model(results / "model"), load_tokenizer(results / "model")
    encoder = Encoder(tokenizer, context_length(model), "error")
    found = step_forces(
        StepRecord.load(place), PolicyFunction(model), watched, encoder, stage=STAGES[arm]
    )
    return tuple(found.rows)


def _over_seeds(
    measured: Sequence[Iterable[tuple[str, Literal[1, -1], np.ndarray]]], prefix: str
) -> list[Finding]:
    """A claim's figures: each seed's mean over pairs."""
    findings = []
    for seeds in zip(*measured, strict=True):
        name, sign, _ = seeds[0]
        means = tuple(float(values.mean()) for _, _, values in seeds)
        findings.append(Finding(prefix + name, means, sign))
    return findings


def probe_changes(one: Measured) -> dict[str, float]:
    """Mean changes from the first to the last probe, nats."""
    logp = one.paths.logp
    moved = {
        "Δ chosen": logp["chosen"],
        "Δ rejected": logp["rejected"],
        "Δ y*": logp[ARGMAX],
        "Δ gap": logp[ARGMAX] - logp["chosen"],
        "Δ margin": logp["chosen"] - logp["rejected"],
    }
    return {name: float(change(path).mean()) for name, path in moved.items()}


def _explanation(stage: str, seeds: Sequence[Sequence[ForceRow]]) -> list[Finding]:
    """The share left unexplained on all answers, and what pushed chosen answers which way."""

    def pushes(part: str) -> tuple[float, ...]:
        return tuple(
            float(np.mean([getattr(row, part) for row in rows if row.kind == "chosen"]))
            for rows in seeds
        )

    left = tuple(unexplained(rows).mean for rows in seeds)
    on_chosen = f"{stage} step on chosen: "
    findings = [
        Finding(f"{stage} step: 1 − R²", left, -1, UNEXPLAINED_SHARE),
        Finding(f"{on_chosen}from chosen", pushes("from_chosen"), 1),
        Finding(f"{on_chosen}measured", pushes("measured")),
        Finding(f"{on_chosen}predicted", pushes("predicted")),
    ]
    if stage == "dpo":
        findings.append(Finding(f"{on_chosen}from rejected", pushes("from_rejected"), -1))
    return findings
