"""The table of a run's numbers: what pages wrote as claims or as a summary, by name."""

from __future__ import annotations

import json
from pathlib import Path

from dynolab.statistics import Interval
from flows.chapter.digits import SimplicityParameters, plan_simplicity
from flows.flow import Step
from flows.parameters import validated
from tasks.chapters import MappingsConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.result_table import result_table, write_table
from tests.flows.in_process import InProcess


def test_a_chapter_s_table_holds_its_claims_numbers_and_keys(tmp_path: Path) -> None:
    lab = InProcess(tmp_path)
    parameters = validated(
        SimplicityParameters,
        {
            "name": "small",
            "seeds": [3, 4],
            "width": 4,
            "spaces": [{"attributes": 2, "values": 2, "steps": 3}],
        },
    )
    results = lab.run_steps(plan_simplicity(parameters, lab.platform).steps)
    made = parameters.model_dump(mode="json")
    table = result_table(lab.platform.store, "simplicity-page", made, results)
    assert (table["name"], table["seeds"]) == ("small", [3, 4])
    keys = {step: stage["key"] for step, stage in table["stages"].items()}
    assert keys == {step: results[step].key for step in ("mappings-2x2", "simplicity-page")}
    assert table["verdicts"].keys() >= {"2×2/speed", "2×2/cooperation"}
    assert table["estimates"]["2×2/speed/Δ area"]["n"] == 2
    assert table["numbers"]["mappings-2x2/trained"] == 512
    assert not any(name.endswith("/seconds") for name in table["numbers"])
    write_table(table, tmp_path / "table.json")
    text = (tmp_path / "table.json").read_text()
    assert json.loads(text) == table
    assert ' "name": "small"' in text, "an entry a line"


def _summarised(work: Work[MappingsConfig]) -> dict[str, float]:
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
    config = MappingsConfig(attributes=2, values=2)
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
