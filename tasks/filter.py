"""Stage `filter`: training pairs without those that an audit ranks worst, or with weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from pydantic import Field

from dynolab.audit.foresight import Ranking, risk, worst_first
from dynolab.data.rows import Example, read_rows, write_rows
from dynolab.errors import ConfigError
from dynolab.results.audit import FilteredPairs, PairAudit
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work


class FilterConfig(StageConfig):
    """Which pairs are left out before training, or weigh less.

    A ranking that predicts
    falls need not find their cause: `from_all` finds answers that the other pairs push down, so it
    drops the victims; `force` and `on_all` rank by what the pair itself does.
    """

    by: Ranking = Field(
        "force", description="Ranking of the audit by which the worst pairs are dropped."
    )
    drop: float = Field(
        0.1, gt=0, lt=1, description="Share of the audited training pairs that is dropped."
    )
    weigh: bool = Field(
        False,
        exclude_if=lambda weigh: not weigh,
        description="Keep all pairs and weigh them: by e to the minus their risk, in its standard "
        "deviations, with mean 1.",
    )
    pairs: tuple[str, ...] = Field(
        (),
        exclude_if=lambda pairs: not pairs,
        description="Ids of pairs that are dropped, in place of a ranking.",
    )


def filter_pairs(work: Work[FilterConfig]) -> dict[str, float]:
    """Reads inputs `data` and, for a ranking, `audit`.

    Results: `train.jsonl` without the worst pairs, the unchanged `probes.jsonl`, and
    `filter.json`, which lists the dropped pairs; with `weigh`, all rows with a weight, and
    `weights.jsonl`, which lists the weights by id. A training stage reads this result in place of
    the data stage's. Pairs that were not audited are kept, with weight 1.

    **Raises** `ConfigError` for ids that no training pair has.
    """
    config, data = work.config, work.input_folder("data")
    with work.shown():
        ranked = [] if config.pairs else _ranked(work.input_folder("audit"), config)
        weights = _weights(ranked, config) if config.weigh else {}
        worst = tuple(row.pair_id for row in ranked[: round(config.drop * len(ranked))])
        dropped = () if weights else config.pairs or worst
        dropped_ids = frozenset(dropped)
        rows = read_rows(data / "train.jsonl", Example)
        kept_rows = (
            row.model_copy(update={"weight": weights.get(row.id, 1.0)}) if weights else row
            for row in rows
            if row.id not in dropped_ids
        )
        kept = write_rows(work.output / "train.jsonl", kept_rows)
        known = {row.id for row in read_rows(data / "train.jsonl", Example)}
        if unknown := sorted(dropped_ids - known):
            raise ConfigError("filter.pairs", unknown[0], "is not the id of a training pair")
        shutil.copyfile(data / "probes.jsonl", work.output / "probes.jsonl")
        if weights:
            lines = (json.dumps({"id": name, "weight": w}) for name, w in weights.items())
            (work.output / "weights.jsonl").write_text("".join(f"{line}\n" for line in lines))
        facts = FilteredPairs(by="id" if config.pairs else config.by, kept=kept, dropped=dropped)
        (work.output / "filter.json").write_text(facts.model_dump_json(indent=1))
    work.tracker.log_artifact(work.output / "filter.json", "data")
    return {"data/pairs_kept": float(kept), "data/pairs_filtered": float(len(dropped))}


def _ranked(audit: Path, config: FilterConfig) -> list[PairAudit]:
    """The audited training pairs, the one that the ranking puts first."""
    audited = read_rows(audit / "audit.jsonl", PairAudit)
    return worst_first([row for row in audited if row.split == "train"], config.by)


def _weights(rows: list[PairAudit], config: FilterConfig) -> dict[str, float]:
    """`w_i = n e^{−z_i} / Σ_j e^{−z_j}`, z a pair's risk in standard deviations, by id."""
    risks = risk(rows, config.by)
    factors = np.exp((risks.min() - risks) / (risks.std() or 1.0))
    weights = len(rows) * factors / factors.sum()
    return {row.pair_id: float(weight) for row, weight in zip(rows, weights, strict=True)}


FILTER = Stage("filter", 1, filter_pairs)
