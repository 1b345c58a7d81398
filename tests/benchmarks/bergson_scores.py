"""What Bergson says of responses; its own interpreter runs this for `tests.benchmarks.bergson`.

    python tests/benchmarks/bergson_scores.py FOLDER BATCH_TOKENS

FOLDER has the models `before` and `after`, and tokens with labels: `rows.jsonl`, whose scores are
wanted, and two sets of queries, `single.jsonl` and `chosen.jsonl`. Writes METHOD-MODEL.npy, scores
[rows, queries] of every single query, for `audit` of the mean of the chosen ones, and
`seconds.json`, the CPU seconds of each.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bergson import DataConfig, IndexConfig, PreprocessConfig, QuerySetConfig, ScoreConfig
from bergson.build import build_query
from bergson.cli.trackstar import trackstar
from bergson.config.config import HessianConfig, HessianPipelineConfig, TrackstarConfig
from bergson.data import load_scores
from bergson.hessians.pipeline import hessian_pipeline
from bergson.score.score import score_dataset


def index(folder: Path, run: str, model: str, **more: Any) -> IndexConfig:
    return IndexConfig(
        run_path=str(folder / run),
        model=str(folder / model),
        data=DataConfig(dataset=str(folder / "rows.jsonl")),
        token_batch_size=int(sys.argv[2]),
        **more,
    )


def products(folder: Path, name: str, model: str, queries: QuerySetConfig) -> None:
    """Inner products of gradients, `name/scores`."""
    query = index(folder, f"{name}/query", model)
    build_query(query, queries, PreprocessConfig())
    scored = ScoreConfig(query_path=query.run_path)
    score_dataset(index(folder, f"{name}/scores", model), scored, PreprocessConfig())


def main(folder: Path) -> None:
    single = QuerySetConfig(dataset=str(folder / "single.jsonl"))
    mean = QuerySetConfig(dataset=str(folder / "chosen.jsonl"), aggregation="mean")
    runs: dict[str, Callable[[], object]] = {
        "audit-before": lambda: products(folder, "audit-before", "before", mean),
        "tracin-before": lambda: products(folder, "tracin-before", "before", single),
        "tracin-after": lambda: products(folder, "tracin-after", "after", single),
        "trackstar-after": lambda: trackstar(
            index(folder, "trackstar-after", "after", projection_dim=16),
            TrackstarConfig(query=single),
        ),
        "ekfac-after": lambda: hessian_pipeline(
            index(folder, "ekfac-after", "after"),
            HessianConfig(method="kfac", ev_correction=True),
            ScoreConfig(),
            PreprocessConfig(),
            HessianPipelineConfig(query=single),
        ),
    }
    took = {}
    for name, run in runs.items():
        began = time.process_time()
        run()
        took[name] = time.process_time() - began
        np.save(folder / f"{name}.npy", load_scores(folder / name / "scores")[:])
    (folder / "seconds.json").write_text(json.dumps(took))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
