"""The table of a chapter's numbers: its claims, by name."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.chapters.flows.digits import SimplicityParameters, plan_simplicity
from flows.parameters.validation import validated
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
