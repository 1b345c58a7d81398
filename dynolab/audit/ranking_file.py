"""A ranking of pairs by somebody else's scores, which is judged beside the audit's."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from dynolab.audit.foresight import RISKY
from dynolab.data.sources.files import read_records
from dynolab.errors import ConfigError

FIELD = "ranking"
_FORMAT = "give a row for each pair, with its id and a score: the higher, the more it would fall"
_LISTED = 3


def ranking_name(path: Path) -> str:
    """The name that a file gives its ranking.

    **Raises:** `ConfigError` for that of one of the audit's rankings.
    """
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.name.partition(".")[0]) or FIELD
    if name in RISKY:
        raise ConfigError(FIELD, path.name, "the audit has a ranking of this name; rename the file")
    return name


def read_ranking(path: Path) -> dict[str, float]:
    """The scores of a file of JSON lines or Parquet, by id.

    **Raises:** `ConfigError` for a row without id or score, a score that is no finite number, an id
    that stands there twice, and a file without rows.
    """
    scores: dict[str, float] = {}
    for number, record in enumerate(read_records(path, FIELD), 1):
        name, score = record.get("id"), record.get("score")
        where = f"{FIELD} row {number}"
        if name is None or score is None:
            raise ConfigError(where, sorted(record), f"has no id and score; {_FORMAT}")
        is_number = isinstance(score, int | float) and not isinstance(score, bool)
        if not is_number or not math.isfinite(score):
            raise ConfigError(f"{where}.score", score, "is no finite number")
        if str(name) in scores:
            raise ConfigError(f"{where}.id", name, "stands there twice; give one score for each id")
        scores[str(name)] = float(score)
    if not scores:
        raise ConfigError(FIELD, path.name, f"has no rows; {_FORMAT}")
    return scores


def check_scored(
    scores: Mapping[str, float], audited: Mapping[str, Collection[str]], ids: Collection[str]
) -> None:
    """Checks that scores fit the pairs: all ids are pairs', and splits are scored as a whole.

    **Arguments:** `audited`: ids of the pairs that the audit reads, by split; `ids`: of all pairs.

    **Raises:** `ConfigError` for an id that no pair has, and for a split of which some pairs have
    scores and others none.
    """
    if unknown := [name for name in scores if name not in ids]:
        remedy = f"are ids of no pair; the data's are like {_listed(ids)}"
        raise ConfigError(FIELD, _listed(unknown), remedy)
    for split, names in audited.items():
        missing = [name for name in names if name not in scores]
        if missing and len(missing) < len(names):
            remedy = f"have no score, {len(names) - len(missing)} others of split {split} have one"
            raise ConfigError(FIELD, _listed(missing), f"{remedy}; score all or none")
    if not any(name in scores for names in audited.values() for name in names):
        raise ConfigError(FIELD, _listed(scores), "none of these pairs is audited")


def _listed(names: Collection[str]) -> str:
    first = ", ".join(list(names)[:_LISTED])
    return first + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
