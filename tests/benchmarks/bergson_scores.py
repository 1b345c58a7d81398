"""What Bergson says of responses: `scores` asks, and its own interpreter runs `main`.

Methods are `tracin`, products of gradients, `trackstar` and `ekfac`, its pipelines with their own
settings, each of the model behind the hyphen, and of every query of `single`; `audit` is the
products with the mean gradient of `chosen`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dynolab.data.encode import Encoded

BATCH_TOKENS = 1_024


def scores(
    bergson: Path,
    models: Mapping[str, Path],
    responses: Sequence[Encoded],
    queries: Mapping[str, Sequence[Encoded]],
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Scores [responses, queries] and CPU seconds without imports, by METHOD-MODEL.

    **Arguments:** `bergson`: the folder of its environment; `models`: `before` and `after`.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model, place in models.items():
            shutil.copytree(place, folder / model, copy_function=shutil.copyfile)
            # Bergson takes no more tokens at once than a model says that its context has.
            settings = json.loads((place / "config.json").read_text())
            settings |= {"max_position_embeddings": BATCH_TOKENS}
            (folder / model / "config.json").write_text(json.dumps(settings))
        for file, sequences in {"rows": responses, **queries}.items():
            lines = (
                (row.ids, (-100,) * row.prompt_length + row.ids[row.prompt_length :])
                for row in sequences
            )
            rows = (json.dumps({"input_ids": ids, "labels": labels}) for ids, labels in lines)
            (folder / f"{file}.jsonl").write_text("\n".join(rows))
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        # -P: else a file beside this one would be imported in place of the package.
        command = [bergson / "bin" / "python", "-P", __file__, name]
        subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
        made = {file.stem: np.load(file) for file in folder.glob("*.npy")}
        return made, json.loads((folder / "seconds.json").read_text())


def main(folder: Path) -> None:
    """Writes METHOD-MODEL.npy and `seconds.json`."""
    from bergson import DataConfig, IndexConfig, PreprocessConfig, QuerySetConfig, ScoreConfig
    from bergson.build import build_query
    from bergson.cli.trackstar import trackstar
    from bergson.config.config import HessianConfig, HessianPipelineConfig, TrackstarConfig
    from bergson.data import load_scores
    from bergson.hessians.pipeline import hessian_pipeline
    from bergson.score.score import score_dataset

    def index(run: str, **more: Any) -> IndexConfig:
        return IndexConfig(
            run_path=str(folder / run),
            model=str(folder / run.partition("/")[0].partition("-")[2]),
            data=DataConfig(dataset=str(folder / "rows.jsonl")),
            token_batch_size=BATCH_TOKENS,
            **more,
        )

    def products(name: str, queries: QuerySetConfig) -> None:
        query = index(f"{name}/query")
        build_query(query, queries, PreprocessConfig())
        scored = ScoreConfig(query_path=query.run_path)
        score_dataset(index(f"{name}/scores"), scored, PreprocessConfig())

    single = QuerySetConfig(dataset=str(folder / "single.jsonl"))
    mean = QuerySetConfig(dataset=str(folder / "chosen.jsonl"), aggregation="mean")
    ekfac = HessianConfig(method="kfac", ev_correction=True)
    runs: dict[str, Callable[[str], object]] = {
        "audit-before": lambda name: products(name, mean),
        "tracin-before": lambda name: products(name, single),
        "tracin-after": lambda name: products(name, single),
        "trackstar-after": lambda name: trackstar(
            index(name, projection_dim=16), TrackstarConfig(query=single)
        ),
        "ekfac-after": lambda name: hessian_pipeline(
            index(name),
            ekfac,
            ScoreConfig(),
            PreprocessConfig(),
            HessianPipelineConfig(query=single),
        ),
    }
    took = {}
    for name, run in runs.items():
        began = time.process_time()
        run(name)
        took[name] = time.process_time() - began
        np.save(folder / f"{name}.npy", load_scores(folder / name / "scores")[:])
    (folder / "seconds.json").write_text(json.dumps(took))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
