"""One table of several runs of a study that has one seed each.

    python docs/seeds.py NAME FILE FILE …

writes `deploy/studies/results/NAME.json` from the tables that the runs left in
`.dynolab/reports`: every estimate and number that all of them have as its mean over seeds with
Student's interval, which ends at 0 and 1 for areas under curves, shares of risen probability and
wins, and at −1 and 1 for correlations. A claim appears, or does not, if it does so in every run.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dynolab.statistics import mean_interval  # noqa: E402
from tasks.shared.result_table import write_table  # noqa: E402

WITHIN_0_AND_1 = re.compile(r"(^|[/_])(auc|ladder|index|rates)(/|$)")
CORRELATIONS = re.compile(r"/(spearman|partial)$")


def over_seeds(name: str, seeds: Sequence[int], tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The table of all runs; its steps are named as those of comparisons, `<step>-<seed>`."""
    figures: list[dict[str, float | None]] = []
    verdicts: list[dict[str, str]] = [table["verdicts"] for table in tables]
    for table in tables:
        own = {figure: known["mean"] for figure, known in table["estimates"].items()}
        ends = ("_low", "_high")  # of an interval over the cases of one run
        figures.append({k: x for k, x in table["numbers"].items() if not k.endswith(ends)} | own)
    shared = [
        figure for figure in figures[0] if all(own.get(figure) is not None for own in figures)
    ]
    means = {f: mean_interval(np.array([own[f] for own in figures], float)) for f in shared}
    for figure, known in means.items():
        least = 0.0 if WITHIN_0_AND_1.search(figure) else -1.0
        if least == 0 or CORRELATIONS.search(figure):
            means[figure] = replace(known, low=max(known.low, least), high=min(known.high, 1.0))
    return {
        "name": name,
        "seeds": list(seeds),
        "date": max(table["date"] for table in tables),
        "stages": {
            f"{step}-{seed}": made
            for seed, table in zip(seeds, tables, strict=True)
            for step, made in table["stages"].items()
        },
        "verdicts": {
            claim: outcome if all(own.get(claim) == outcome for own in verdicts) else "unclear"
            for claim, outcome in verdicts[0].items()
        },
        "estimates": {figure: known.as_dict() for figure, known in means.items()},
        "numbers": {},
    }


if __name__ == "__main__":
    known = [json.loads(Path(file).read_text()) for file in sys.argv[2:]]
    # Runs on another study's results, as those of `judge`, have no seed: they are given in order.
    order = [i if table["seeds"] is None else table["seeds"] for i, table in enumerate(known)]
    file = ROOT / "deploy" / "studies" / "results" / f"{sys.argv[1]}.json"
    write_table(over_seeds(sys.argv[1], order, known), file)
