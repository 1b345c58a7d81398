"""A study of rows whose ids hold the separators that JSON leaves in texts, to its page."""

from __future__ import annotations

import json
from pathlib import Path

from dynolab.results.audit import PairAudit
from flows.study.flow import STUDY
from tests.flows.in_process import InProcess
from tests.library.test_lines import SEPARATORS
from tests.training.small import make_files, make_rows


def separators_survived(folder: Path) -> int:
    """For how many separators the pairs with it in their ids are on the page and in the records."""
    make_files(folder)
    marks = SEPARATORS * 3
    rows = [
        row.model_copy(update={"id": f"q{number}{mark}x", "wins": None})
        for number, (row, mark) in enumerate(zip(make_rows(len(marks)), marks, strict=True))
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row.model_dump()) + "\n" for row in rows))
    training = {
        "engine": {"kind": "plain", "ranks": 1},
        "steps": 3,
        "batch_size": len(rows),
        "micro_batch_size": len(rows),
        "probe_every": 3,
        "checkpoint_every": 1,
        "record_steps": [2],
    }
    lab = InProcess(folder / "home")
    planned = lab.plan(
        STUDY,
        {
            "name": "separators",
            "data": {
                "source": "file",
                "path": str(folder / "rows.jsonl"),
                "heldout_rows": 0,
                "probe_pairs": len(rows),
            },
            "base": {"source": str(folder / "model")},
            "sft": training | {"objective": {"name": "sft"}},
            "preference": training | {"objective": {"name": "dpo"}},
            "probe": {"answers": 1, "answer_tokens": 4},
            "forces": {"pairs": 2},
            "kernel": None,
            "ledger": {"pairs": 2, "answers": 1},
        },
    )
    results = lab.run_plan(planned)
    audited = {pair.pair_id for pair in lab.rows(results["audit"], "audit.jsonl", PairAudit)}
    recorded = {example.id for example in lab.record(results["preference"], 2).examples}
    ids = {row.id for row in rows} & audited & recorded
    return sum(any(mark in name for name in ids) for mark in SEPARATORS)
