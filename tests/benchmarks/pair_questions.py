"""What a DPO step does to its own pairs: does the band tell it, and is it curvature?

Real trainings of `builtin.yaml` and, with DYNOLAB_TEST_DATA, of `hh_tinystories.yaml`, in one
process, over the seeds `SEEDS`. Figures of a data set are means over seeds with the ends `…_low`
and `…_high` of their 95% t-intervals:

- `band_right_DATA`: share of training pairs whose chosen answer falls over the training if the pair
  lies below its band (arXiv 2604.18239), and does not otherwise. `band_rival_DATA`: the same where
  one call is made for all pairs, the commoner one. `band_below_DATA`: share of pairs below it.
- `second_order_share_DATA`: of what the chosen answers that fell lost over the whole training, the
  share that the softmax' curvature makes along straight logits (arXiv 2603.18258);
  `second_order_share_step_DATA`: the same of its recorded steps, a mean over steps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import fmean

from dynolab.data.rows import ProbeRow, first_pairs, read_rows
from dynolab.forces import step_validity
from dynolab.forces.step.step_forces import Start
from dynolab.results.audit import ChosenChange, PairAudit
from dynolab.statistics import mean_interval
from flows.study.parameters import StudyParameters
from flows.study.steps import study_steps
from tasks.audit import AuditConfig
from tasks.runtime.work import StageResult
from tasks.shared.policies import load_encoder, load_policy
from tests.benchmarks.removal_forecasts import study_of
from tests.flows.in_process import InProcess

SEEDS = (0, 1, 2)
PAIRS = {"builtin": 20, "hh": 10}
"""Pairs of each split whose chosen answers are watched in the recorded steps."""
AUDITED = AuditConfig(pairs=100, heldout_pairs=50)
RUN = {"data", "base", "sft", "audit", "preference", "foresight"}


def pair_questions(home: Path) -> dict[str, float]:
    """All figures of both data sets."""
    figures: dict[str, float] = {}
    for data in PAIRS:
        if data != "builtin" and "DYNOLAB_TEST_DATA" not in os.environ:
            continue
        seeds = [dict(_of_seed(data, seed, home)) for seed in SEEDS]
        for name in seeds[0]:
            over_seeds = mean_interval([figures_of[name] for figures_of in seeds])
            key = f"{name}_{data}"
            figures |= {key: over_seeds.mean}
            figures |= {f"{key}_low": over_seeds.low, f"{key}_high": over_seeds.high}
    return figures


def _of_seed(data: str, seed: int, home: Path) -> Iterator[tuple[str, float]]:
    study = study_of(data, seed)
    last = study.preference.steps - 1
    recorded = study.preference.model_copy(update={"record_steps": (0, last // 2, last)})
    study = study.model_copy(update={"preference": recorded, "ledger": None, "audit": AUDITED})
    lab = InProcess(home)
    results = lab.run_steps([step for step in study_steps(study) if step.name in RUN])
    yield from _band(lab, results)
    yield from _curvature(lab, results, study, PAIRS[data])


def _band(lab: InProcess, results: dict[str, StageResult]) -> Iterator[tuple[str, float]]:
    audits = lab.rows(results["audit"], "audit.jsonl", PairAudit)
    below = {row.pair_id: row.band == "below" for row in audits if row.split == "train"}
    changes = lab.rows(results["foresight"], "changes.jsonl", ChosenChange)
    fell = {row.pair_id: row.change < 0 for row in changes if row.split == "train"}
    share = fmean(fell.values())
    yield "band_right", fmean(below[pair] == fallen for pair, fallen in fell.items())
    yield "band_rival", max(share, 1 - share)
    yield "band_below", fmean(below[pair] for pair in fell)


def _curvature(
    lab: InProcess, results: dict[str, StageResult], study: StudyParameters, pairs: int
) -> Iterator[tuple[str, float]]:
    folder = lab.folder(results["preference"]) / "model"
    policy, encoder = load_policy(folder), load_encoder(folder)
    probes = list(read_rows(lab.folder(results["data"]) / "probes.jsonl", ProbeRow))
    watched = [row for row in first_pairs(probes, pairs) if row.kind == "chosen"]
    records = [lab.record(results["preference"], step) for step in study.preference.record_steps]
    start = Start(records[0].facts.step, records[0].before)
    ends = [(record, None) for record in islice(records, 1, None)] + [(records[-1], start)]
    shares = []
    for record, since in ends:
        validity = step_validity(record, policy, watched, encoder, stage="dpo", since=since)
        assert validity.falls is not None, "no answer fell"
        shares.append(validity.falls.curvature)
    *steps, whole = shares
    yield "second_order_share", whole
    yield "second_order_share_step", fmean(steps)
