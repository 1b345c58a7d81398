"""Stage `filter`: training pairs without those that an audit ranks worst."""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import Field

from dynolab.audit.foresight import Ranking
from dynolab.data.rows import Example, read_rows, write_rows
from dynolab.errors import ConfigError
from dynolab.results.audit import FilteredPairs, PairAudit
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work


class FilterConfig(StageConfig):
    """Which pairs are left out before training.

    Pairs are dropped, not weighted: no objective takes example weights. A ranking that predicts
    falls need not find their cause: `from_all` finds answers that the other pairs push down, so it
    drops the victims; `force` and `on_all` rank by what the pair itself does.
    """

    by: Ranking = Field(
        "force", description="Ranking of the audit by which the worst pairs are dropped."
    )
    drop: float = Field(
        0.1, gt=0, lt=1, description="Share of the audited training pairs that is dropped."
    )
    pairs: tuple[str, ...] = Field(
        (),
        exclude_if=lambda pairs: not pairs,
        description="Ids of pairs that are dropped, in place of a ranking.",
    )


def filter_pairs(work: Work[FilterConfig]) -> dict[str, float]:
    """Reads inputs `data` and, for a ranking, `audit`.

    Results: `train.jsonl` without the worst pairs, the unchanged `probes.jsonl`, and
    `filter.json`, which lists the dropped pairs. A training stage reads this result in place of the
    data stage's. Pairs that were not audited are kept.

    **Raises** `ConfigError` for ids that no training pair has.
    """
    config, data = work.config, work.input_folder("data")
    with work.shown():
        dropped = config.pairs or _worst(work.input_folder("audit"), config)
        dropped_ids = frozenset(dropped)
        rows = read_rows(data / "train.jsonl", Example)
        kept_rows = (row for row in rows if row.id not in dropped_ids)
        kept = write_rows(work.output / "train.jsonl", kept_rows)
        known = {row.id for row in read_rows(data / "train.jsonl", Example)}
        if unknown := sorted(dropped_ids - known):
            raise ConfigError("filter.pairs", unknown[0], "is not the id of a training pair")
        shutil.copyfile(data / "probes.jsonl", work.output / "probes.jsonl")
        facts = FilteredPairs(by="id" if config.pairs else config.by, kept=kept, dropped=dropped)
        (work.output / "filter.json").write_text(facts.model_dump_json(indent=1))
    work.tracker.log_artifact(work.output / "filter.json", "data")
    return {"data/pairs_kept": float(kept), "data/pairs_filtered": float(len(dropped))}


def _worst(audit: Path, config: FilterConfig) -> tuple[str, ...]:
    """Ids of the training pairs that the ranking puts first."""
    from dynolab.audit.foresight import worst_first

    audited = read_rows(audit / "audit.jsonl", PairAudit)
    ranked = worst_first([row for row in audited if row.split == "train"], config.by)
    return tuple(row.pair_id for row in ranked[: round(config.drop * len(ranked))])


FILTER = Stage("filter", 1, filter_pairs)
