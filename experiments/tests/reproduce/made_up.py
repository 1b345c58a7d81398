"""A made-up log in the format of the papers' authors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np

NAMES = (
    "chosen_A_o",
    "logps_eval_prob_train/chosen",
    "logps_eval_prob_train/rejected",
    "argmax_prob_logits",
    "except_argmax_prob_logits",
    "p_e",
)


def made_up(evaluations: int = 9, prompts: int = 40, seed: int = 0) -> np.ndarray:
    """The chosen answer rises and falls, the rejected one falls, y* rises; one quantity is NaN."""
    rng, at = np.random.default_rng(seed), np.linspace(0, 1, evaluations)
    shapes = (200 + at, 16 * at * (1 - at) - at, -60 * at, 9 * at, np.nan * at, 0.7 - 0.1 * at)
    starts = (0, -150, -120, -60, 0, 0)
    drift = rng.normal(0, 0.5, (len(NAMES), prompts)) * at[:, None, None]
    return np.stack([s + x for s, x in zip(shapes, starts, strict=True)], 1)[..., None] + drift


def write_log(folder: Path, values: np.ndarray, *, means_alone: bool = False) -> Path:
    """Writes a run's folder; its second line stands twice, as after a restart."""
    folder.mkdir(parents=True)
    lines = [json.dumps(dict(zip(NAMES, row.mean(-1).tolist(), strict=True))) for row in values]
    (folder / "prob_train_metrics.json").write_text("\n".join([*lines[:2], *lines[1:]]) + "\n")
    if not means_alone:
        with gzip.open(folder / "logp_npy_all_chosen.npy.gz", "wb") as file:
            np.save(file, values)
    return folder
