"""Learning paths from logs that others wrote, in the format of the papers' authors.

A run's folder holds `prob_train_metrics.json`, a line of JSON for each evaluation: quantity → mean
over the prompts. Beside it may lie `logp_npy_all_chosen.npy`, plain or `.gz`: numbers of shape
(evaluations, quantities, prompts), the quantities in the order of the first line's. The quantities
are those of the code of Ren & Sutherland (arXiv 2407.10490): `logps_eval_prob_train/<kind>`, the
log-probability of an answer; `argmax_prob_logits`, that of y*; `<kind>_A_o`, the norm of A; `p_e`
and `energy`, of the chosen answer's tokens.
"""

from __future__ import annotations

import gzip
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from pydantic import TypeAdapter

from dynolab.errors import ConfigError, reading
from dynolab.probes.paths import LearningPaths
from dynolab.results.study import ARGMAX

LINES, NUMBERS = "prob_train_metrics.json", "logp_npy_all_chosen.npy"
MOST_BYTES = 1 << 30
"""Of one file, unpacked; a packed one could fill the memory."""

_FIELD = "--logs"
_PREFIX = "logps_eval_prob_train/"
_NAMES = {"argmax_prob_logits": ARGMAX}
_LINE = TypeAdapter(dict[str, float])


@dataclass(frozen=True)
class Log:
    """One run's log: its paths, and its other quantities by name, in the log's own units.

    Steps are evaluations, from 0. A log of means alone has one pair, the mean over the prompts, and
    so no intervals.

    - `training`: what was trained, one of `experiments.reproduce.claims.TITLES`.
    - `note`: why y* was left out, if it was. `digest`: SHA-256 of its files.
    """

    training: str
    paths: LearningPaths
    others: dict[str, Float[ndarray, "steps pairs"]]
    note: str
    digest: str


def read_log(folder: Path, training: str, without: Collection[str] = ()) -> Log:
    """Reads one run's folder; the files can hold only numbers.

    y* is left out if it lies below the chosen answer, which no sum of the likeliest tokens'
    log-probabilities can. A line that stands twice, as a restarted run leaves it, counts once.

    **Arguments:** `training`: as in `Log`; `without`: kinds to leave out, such as `argmax`, where
    the log of them is known to be wrong.

    **Raises:** `ConfigError` for files that are missing, damaged or do not fit each other.
    """
    remedy = "give a line of JSON for each evaluation: quantity → number"
    with reading(_FIELD, str(folder / LINES), remedy):
        content = _read(folder / LINES)
        lines = [_LINE.validate_json(line) for line in dict.fromkeys(content.split(b"\n")) if line]
        names = list(lines[0])
        values = np.array([[line[name] for name in names] for line in lines])[..., None]
    for file in (folder / NUMBERS, folder / f"{NUMBERS}.gz"):
        if file.exists():
            remedy = f"give numbers (evaluations, {len(names)} quantities of {LINES}, prompts)"
            with reading(_FIELD, str(file), remedy):
                packed = _read(file)
                means = values[0]
                values = np.load(BytesIO(packed), allow_pickle=False).astype(float)
                centre = values[0].mean(-1, keepdims=True)
                if values.ndim != 3 or not np.allclose(centre, means, rtol=1e-3, equal_nan=True):
                    raise ValueError(f"its first means are not those of {LINES}")
            content += packed
    if len(values) < 2:
        raise ConfigError(_FIELD, str(folder), "holds one evaluation; a path needs two or more")
    # A prompt that an evaluation lacks is left out of all, so that their means are over the same.
    values = np.where(np.isfinite(values).all(0), values, np.nan)
    measured = {
        name: values[:, place]
        for place, name in enumerate(names)
        if np.isfinite(values[:, place]).any()
    }
    scored = {
        _NAMES.get(name, name.removeprefix(_PREFIX)): measured.pop(name)
        for name in names
        if name in measured and (name.startswith(_PREFIX) or name in _NAMES)
    }
    logp = {kind: path for kind, path in scored.items() if kind not in without}
    note = ""
    paths = LearningPaths(np.arange(len(values)), tuple(map(str, range(values.shape[2]))), logp)
    if paths.gap is not None and (below := np.nanmean(paths.gap < 0)) > 0:
        del logp[ARGMAX]
        note = f"y* is left out: it lies below the chosen answer in {below:.0%} of the cases"
    return Log(training, paths, measured, note, sha256(content).hexdigest())


def _read(file: Path) -> bytes:
    """The file's content, unpacked.

    **Raises:** `ValueError` above `MOST_BYTES`, and for what is no file, such as a pipe.
    """
    if file.exists() and not file.is_file():
        raise ValueError("is a folder, pipe or device, not a file")
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rb") as opened:
        content: bytes = opened.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"is larger than {MOST_BYTES >> 20} MiB")
    return content
