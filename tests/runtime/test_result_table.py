"""The table of a run's numbers: what pages wrote as claims or as a summary, by name."""

from __future__ import annotations

import json
from pathlib import Path

from dynolab.statistics import Interval
from flows.flow import Step
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.result_table import result_table
from tests.flows.in_process import InProcess


class Count(StageConfig):
    objects: int


def _summarised(work: Work[Count]) -> dict[str, float]:
    interval = Interval(0.5, 0.4, 0.6, 3).as_dict()
    summary = {
        "verdicts": [{"id": "dpo/gap", "outcome": "appears", "measured": {"Δ gap": interval}}],
        "means": {"dpo/train/gap": interval},
        "differences": {"ipo/train/gap": interval},
        "changes": {"sft/chosen": interval},
        "rates": [{"policy": "dpo", "judge": "exact", **interval}],
    }
    (work.output / "summary.json").write_text(json.dumps(summary))
    return {"lost": float("nan"), "kept": 1.0}


def test_a_summary_s_estimates_stand_under_their_kind(tmp_path: Path) -> None:
    lab = InProcess(tmp_path)
    config = Count(objects=4)
    results = lab.run_steps([Step("page", Stage("summarised", 1, _summarised), config)])
    table = result_table(lab.platform.store, "page", {"name": "a", "seed": 5}, results)
    assert (table["verdicts"], table["numbers"], table["seeds"]) == (
        {"dpo/gap": "appears"},
        {"page/kept": 1.0},
        5,
    )
    assert table["estimates"].keys() == {
        "dpo/gap/Δ gap",
        "means/dpo/train/gap",
        "differences/ipo/train/gap",
        "changes/sft/chosen",
        "rates/dpo/exact",
    }
    assert table["estimates"]["rates/dpo/exact"] == {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 3}
