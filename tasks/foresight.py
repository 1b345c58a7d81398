"""Stage `foresight`: how well each ranking predicted which chosen answers fell."""

from __future__ import annotations

import math

from pydantic import Field

from dynolab.data.rows import read_rows, read_value
from dynolab.results.audit import ChosenChange, FilteredPairs, PairAudit
from tasks.audit import read_pairs
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.policies import load_encoder, load_model


class ForesightConfig(StageConfig):
    """How answers are scored after the training."""

    batch: int = Field(16, ge=1, description="Answers in one forward.")


def foresee(work: Work[ForesightConfig]) -> dict[str, float]:
    """Reads inputs `data`, `audit`, `model`, the model that was trained on the audited pairs, and,
    if some of them were filtered out, `filter`: those training pairs are ignored.

    Results: `changes.jsonl` and `foresight.jsonl`.
    """
    from dynolab.audit.foresight import foresight

    rows = list(read_rows(work.input_folder("audit") / "audit.jsonl", PairAudit))
    if "filter" in work.inputs:
        facts = read_value(work.input_folder("filter") / "filter.json", FilteredPairs)
        dropped = frozenset(facts.dropped)
        rows = [row for row in rows if row.split != "train" or row.pair_id not in dropped]
    with work.shown():
        changes = _changes(work, rows)
        rankings = foresight(rows, changes)
        work.write_tables(changes=changes, foresight=rankings)
    work.log_tables(foresight=rankings, changes=changes)
    metrics = {
        f"foresight/{row.split}/{row.ranking}/{name}": getattr(row, name)
        for row in rankings
        for name in ("spearman", "auc", "auc_low", "auc_high")
    }
    return work.log_metrics({n: value for n, value in metrics.items() if math.isfinite(value)})


def _changes(work: Work[ForesightConfig], rows: list[PairAudit]) -> list[ChosenChange]:
    """The change in log-probability of every audited chosen answer."""
    from dynolab.likelihood.token_logps import ResponseLogits
    from dynolab.training.reference import score_responses

    folder = work.input_folder("model", "model")
    encoder = load_encoder(folder)
    encoded = {
        (split, pair.id): pair.chosen
        for split in ("train", "heldout")
        for pair in read_pairs(work, encoder, split, None)
    }
    scored = [row for row in rows if (row.split, row.pair_id) in encoded]
    model, tokenizer = load_model(folder)
    scores = score_responses(
        ResponseLogits(model),
        [encoded[row.split, row.pair_id] for row in scored],
        int(tokenizer.pad_token_id),
        work.config.batch,
    )
    return [
        ChosenChange(
            pair_id=row.pair_id,
            split=row.split,
            change=float(logps.double().sum()) - row.chosen_logp,
        )
        for row, logps in zip(scored, scores, strict=True)
    ]


FORESIGHT = Stage("foresight", 3, foresee, operational=frozenset({"batch"}))
