"""Stages `audit`, `foresight` and `filter`: pairs ranked, rankings tested, pairs left out."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np
from pydantic import Field, model_validator

from dynolab.audit.audit import audit_pairs
from dynolab.audit.foresight import Ranking, foresight, risk, worst_first
from dynolab.audit.ranking_file import check_scored, read_ranking
from dynolab.audit.word_overlap import word_overlap
from dynolab.costs.machines import StageCost
from dynolab.data.encode import EncodedExample, Encoder
from dynolab.data.rows import Example, Split, read_rows, read_value, write_rows
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.objectives import build_objective
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.registry import PAIR_OBJECTIVES, RowObjectiveConfig
from dynolab.results.audit import Band, ChosenChange, FilteredPairs, PairAudit
from dynolab.training.examples import check_rejected
from dynolab.training.reference import score_responses
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.costs import AnalysisCopies, Costs, Reads
from tasks.shared.policies import load_encoder, load_model, load_policy


class AuditConfig(StageConfig):
    """Which pairs are audited, and in which batches."""

    pairs: int | None = Field(
        None, ge=1, description="Training pairs, from the first; default: all."
    )
    heldout_pairs: int | None = Field(
        None, ge=0, description="Held-out pairs, from the first; default: all."
    )
    batch_tokens: int = Field(4_096, ge=1, description="Padded tokens of one forward-mode pass.")


class AuditJob(AuditConfig):
    """The audit for one training."""

    objective: RowObjectiveConfig = Field(
        DPOConfig(), description="Loss of the audited step; the model is its own reference."
    )

    @model_validator(mode="after")
    def _compares_answers(self) -> AuditJob:
        if self.objective.name not in PAIR_OBJECTIVES:
            raise ConfigError(
                "objective",
                self.objective.name,
                "pushes no answer down; choose a loss on pairs: "
                f"{', '.join(sorted(PAIR_OBJECTIVES))}",
            )
        return self


def audit(work: Work[AuditJob]) -> dict[str, float]:
    """Reads inputs `data` and `model`, the model that preference training starts from.

    Results: `audit.jsonl`, training pairs first, and the same as `audit.parquet`.
    """
    import pyarrow as pa
    from pyarrow import parquet

    config = work.config
    folder = work.input_folder("model", "model")
    encoder = load_encoder(folder)
    data = work.input_folder("data")
    pairs = read_pairs(data, encoder, "train", config.pairs)
    heldout = read_pairs(data, encoder, "heldout", config.heldout_pairs)
    objective: Any = build_objective(config.objective)
    with work.shown(len(pairs) + len(heldout)) as progress:
        rows = audit_pairs(
            load_policy(folder, copies=COPIES.gpu),
            pairs,
            objective,
            heldout=heldout,
            batch_tokens=config.batch_tokens,
            on_pair=progress.update,
        )
        work.write_tables(audit=rows)
        columns = pa.Table.from_pylist([row.model_dump() for row in rows])
        parquet.write_table(columns, work.output / "audit.parquet")
    work.log_tables(audit=rows)
    return work.log_metrics(_metrics(rows) | encoder.counts.as_metrics())


def read_pairs(data: Path, encoder: Encoder, split: str, first: int | None) -> list[EncodedExample]:
    """Encodes the first pairs of a split in a folder of rows, without those the encoder drops.

    **Raises** `ConfigError` for rows without a rejected answer.
    """

    pairs = list(islice(read_rows(data / f"{split}.jsonl", Example), first))
    check_rejected([pair.id for pair in pairs if pair.rejected is None], "audit")
    return [example for row in pairs if (example := encoder.example(row)) is not None]


def _metrics(rows: list[PairAudit]) -> dict[str, float]:
    """Means over the training pairs, in nats for a step of learning rate 1."""
    training = [row for row in rows if row.split == "train"]
    names = ("pull_up", "push_down", "force", "from_all")
    means = {f"audit/{n}": float(np.mean([getattr(row, n) for row in training])) for n in names}
    for band in get_args(Band):
        means[f"audit/band/{band}"] = float(np.mean([row.band == band for row in training]))
    return means | {"audit/pushed_down": float(np.mean([row.push_down < 0 for row in training]))}


COPIES = AnalysisCopies(host=3, gpu=3, fetched=2)


def estimate(costs: Costs, config: AuditJob, _: Reads) -> StageCost:
    """Every pair's forwards and backwards, answer by answer."""
    return costs.analysis(
        6 * (config.pairs or len(costs.rows())), COPIES, batch_tokens=costs.answer
    )


AUDIT = Stage("audit", 3, audit, ("batch_tokens",), estimate)


class RankingConfig(StageConfig):
    """A file of scores, and which pairs the audit reads."""

    path: str
    sha256: str
    pairs: int | None
    heldout_pairs: int | None


def rank_by_file(work: Work[RankingConfig]) -> dict[str, float]:
    """Reads input `data`. Results: `ranking.json`, the file's scores by id.

    **Raises** `ConfigError` for scores that do not fit the pairs.
    """
    config, data = work.config, work.input_folder("data")
    with work.shown():
        scores = read_ranking(Path(config.path))
        ids = {
            split: [row.id for row in read_rows(data / f"{split}.jsonl", Example)]
            for split in get_args(Split)
        }
        audited = {
            "train": ids["train"][: config.pairs],
            "heldout": ids["heldout"][: config.heldout_pairs],
        }
        check_scored(scores, audited, dict.fromkeys(chain.from_iterable(ids.values())))
        (work.output / "ranking.json").write_text(json.dumps(scores))
    return {"ranking/scores": float(len(scores))}


RANKING = Stage("ranking", 1, rank_by_file, ("path",))


class ForesightConfig(StageConfig):
    """How answers are scored after the training."""

    batch: int = Field(16, ge=1, description="Answers in one forward.")
    ranking: str | None = Field(
        None,
        exclude_if=lambda name: name is None,
        description="Name of the ranking that input `ranking` holds.",
    )


def foresee(work: Work[ForesightConfig]) -> dict[str, float]:
    """Reads inputs `data`, `audit`, `model`, the model that was trained on the audited pairs, and,
    if some of them were filtered out, `filter`: those training pairs are ignored. Input `ranking`
    holds scores from elsewhere.

    Results: `changes.jsonl` and `foresight.jsonl`.
    """

    rows = list(read_rows(work.input_folder("audit") / "audit.jsonl", PairAudit))
    training_pairs = sum(row.split == "train" for row in rows)
    if "filter" in work.inputs:
        facts = read_value(work.input_folder("filter") / "filter.json", FilteredPairs)
        dropped = frozenset(facts.dropped)
        rows = [row for row in rows if row.split != "train" or row.pair_id not in dropped]
    with work.shown():
        changes, overlaps = _changes(work, rows)
        others = {}
        if (name := work.config.ranking) is not None:
            scores = work.input_folder("ranking") / "ranking.json"
            others[name] = read_value(scores, dict[str, float])
        rankings = foresight(rows, changes, overlaps, training_pairs, others)
        work.write_tables(changes=changes, foresight=rankings)
    work.log_tables(foresight=rankings, changes=changes)
    metrics = {
        f"foresight/{row.split}/{row.ranking}/{name}": getattr(row, name)
        for row in rankings
        for name in (
            "spearman",
            "auc",
            "auc_low",
            "auc_high",
            "partial",
            "partial_low",
            "partial_high",
            "right",
            "right_low",
            "right_high",
        )
    }
    return work.log_metrics({n: value for n, value in metrics.items() if math.isfinite(value)})


def _changes(
    work: Work[ForesightConfig], rows: list[PairAudit]
) -> tuple[list[ChosenChange], dict[tuple[Split, str], float]]:
    """The change in log-probability of every audited chosen answer, and its `word_overlap`."""

    folder = work.input_folder("model", "model")
    encoded = encoded_pairs(work.input_folder("data"), folder)
    scored = [row for row in rows if (row.split, row.pair_id) in encoded]
    pairs = [encoded[row.split, row.pair_id] for row in scored]
    model, tokenizer = load_model(folder)
    scores = score_responses(
        ResponseLogits(model),
        [pair.chosen for pair in pairs],
        int(tokenizer.pad_token_id),
        work.config.batch,
    )
    changes = []
    for row, logps in zip(scored, scores, strict=True):
        after = float(logps.double().sum())
        changes.append(
            ChosenChange(pair_id=row.pair_id, split=row.split, change=after - row.chosen_logp)
        )
    return changes, word_overlaps(scored, encoded)


def encoded_pairs(data: Path, model: Path) -> dict[tuple[Split, str], EncodedExample]:
    """The pairs in a folder of rows, encoded for a folder's model, by split and id."""
    encoder = load_encoder(model)
    pairs: dict[tuple[Split, str], EncodedExample] = {}
    for split in get_args(Split):
        for pair in read_pairs(data, encoder, split, None):
            pairs[split, pair.id] = pair
    return pairs


def word_overlaps(
    rows: Sequence[PairAudit], pairs: Mapping[tuple[Split, str], EncodedExample]
) -> dict[tuple[Split, str], float]:
    """`word_overlap` of audited pairs, training pairs first, by split and id."""
    places = [(row.split, row.pair_id) for row in rows]
    training_pairs = sum(split == "train" for split, _ in places)
    overlaps = word_overlap([pairs[place] for place in places], training_pairs)
    return dict(zip(places, overlaps.tolist(), strict=True))


FORESIGHT = Stage("foresight", 5, foresee, operational=("batch",))


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
    random: int | None = Field(
        None,
        ge=1,
        exclude_if=lambda count: count is None,
        description="How many pairs are drawn at random and dropped, in place of a ranking: the "
        "control of a removal. A comparison draws others with every seed.",
    )
    seed: int = Field(
        0, ge=0, exclude_if=lambda seed: not seed, description="Of the pairs drawn at random."
    )

    @model_validator(mode="after")
    def _one_way(self) -> FilterConfig:
        if self.random is not None and (self.pairs or self.weigh):
            raise ConfigError(
                "filter.random",
                self.random,
                "draws the pairs that are left out; leave out filter.pairs and filter.weigh",
            )
        return self

    @property
    def ranks(self) -> bool:
        """Whether an audit decides which pairs are dropped, or how much they weigh."""
        return not self.pairs and self.random is None

    @property
    def chosen_by(self) -> str:
        """What decides which pairs are dropped: `id`, `random` or a ranking."""
        if self.pairs:
            return "id"
        return self.by if self.random is None else "random"


def filter_pairs(work: Work[FilterConfig]) -> dict[str, float]:
    """Reads inputs `data` and, for a ranking, `audit`.

    Results: `train.jsonl` without the worst pairs, the unchanged `probes.jsonl`, and
    `filter.json`, which lists the dropped pairs; with `weigh`, all rows with a weight, and
    `weights.jsonl`, which lists the weights by id. A training stage reads this result in place of
    the data stage's. Pairs that were not audited are kept, with weight 1.

    **Raises** `ConfigError` for ids that no training pair has, and for more random pairs than there
    are.
    """
    config, data = work.config, work.input_folder("data")
    with work.shown():
        ranked = _ranked(work.input_folder("audit"), config) if config.ranks else []
        weights = _weights(ranked, config) if config.weigh else {}
        dropped = () if weights else _dropped(config, ranked, data / "train.jsonl")
        dropped_ids = frozenset(dropped)
        rows = read_rows(data / "train.jsonl", Example)
        kept_rows = (
            row.model_copy(update={"weight": weights.get(row.id, 1.0)}) if weights else row
            for row in rows
            if row.id not in dropped_ids
        )
        row_count = write_rows(work.output / "train.jsonl", kept_rows)
        train_ids = {row.id for row in read_rows(data / "train.jsonl", Example)}
        if unknown := sorted(dropped_ids - train_ids):
            raise ConfigError("filter.pairs", unknown[0], "is not the id of a training pair")
        shutil.copyfile(data / "probes.jsonl", work.output / "probes.jsonl")
        if weights:
            weight_rows = [{"id": name, "weight": weight} for name, weight in weights.items()]
            write_rows(work.output / "weights.jsonl", weight_rows)
        facts = FilteredPairs(by=config.chosen_by, kept=row_count, dropped=dropped)
        (work.output / "filter.json").write_text(facts.model_dump_json(indent=1))
    work.tracker.log_artifact(work.output / "filter.json", "data")
    return {"data/pairs_kept": float(row_count), "data/pairs_filtered": float(len(dropped))}


def _dropped(
    config: FilterConfig, ranked: Sequence[PairAudit], training_rows: Path
) -> tuple[str, ...]:
    """Ids of the pairs that are left out.

    **Raises** `ConfigError` where more pairs are to be drawn than there are.
    """
    if config.pairs:
        return config.pairs
    if config.random is None:
        return tuple(row.pair_id for row in ranked[: round(config.drop * len(ranked))])
    pairs = [row.id for row in read_rows(training_rows, Example)]
    if config.random >= len(pairs):
        raise ConfigError(
            "filter.random", config.random, f"there are {len(pairs)} pairs; draw fewer"
        )
    return tuple(sorted(Random(config.seed).sample(pairs, config.random)))


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
