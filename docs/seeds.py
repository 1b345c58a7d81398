"""One table of several runs of a study that has one seed each.

    python docs/seeds.py NAME FILE FILE …

writes `deploy/studies/results/NAME.json` from the tables that the runs left in
`.dynolab/reports`: every estimate and number that all of them have as its mean over seeds with
Student's interval, which ends at 0 and 1 for areas under curves, shares of risen probability and
wins, and at −1 and 1 for correlations. A claim appears, or does not, if it does so in every run.

How well rankings tell which answers fall has an interval over seeds and pairs, if pairs are in
several seeds: of the pairs that the runs left in their store (that of `DYNOLAB_HOME`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dynolab.audit.foresight import Predictor, risks_and_changes  # noqa: E402
from dynolab.data.rows import Example, Split, read_rows  # noqa: E402
from dynolab.results.audit import ChosenChange, Foresight, PairAudit  # noqa: E402
from dynolab.statistics import (  # noqa: E402
    Interval,
    auc,
    mean_interval,
    over_seeds_and_pairs,
    partial_rank_correlation,
    rank_correlation,
)
from dynolab.store import Store  # noqa: E402
from tasks.audit import encoded_pairs, word_overlaps  # noqa: E402
from tasks.runtime.open_platform import open_store  # noqa: E402
from tasks.runtime.system.settings import Settings  # noqa: E402
from tasks.shared.result_table import write_table  # noqa: E402

WITHIN_0_AND_1 = re.compile(r"(^|[/_])(auc|ladder|index|rates)(/|$)")
CORRELATIONS = re.compile(r"/(spearman|partial)$")


def over_seeds(
    name: str,
    seeds: Sequence[int],
    tables: Sequence[dict[str, Any]],
    over_pairs: Mapping[str, Interval] | None = None,
) -> dict[str, Any]:
    """The table of all runs; its steps are named as those of comparisons, `<step>-<seed>`.

    **Arguments:** `over_pairs`: figures whose interval is over seeds and pairs.
    """
    figures: list[dict[str, float | None]] = []
    verdicts: list[dict[str, str]] = [table["verdicts"] for table in tables]
    for table in tables:
        estimates = {figure: interval["mean"] for figure, interval in table["estimates"].items()}
        ends = ("_low", "_high")  # of an interval over the cases of one run
        numbers = {k: x for k, x in table["numbers"].items() if not k.endswith(ends)}
        figures.append(numbers | estimates)
    shared = [
        figure for figure in figures[0] if all(run.get(figure) is not None for run in figures)
    ]
    means = {f: mean_interval(np.array([run[f] for run in figures], float)) for f in shared}
    for figure, interval in (over_pairs or {}).items():
        if figure in means:
            if not np.isclose(interval.mean, means[figure].mean, atol=1e-6):
                raise SystemExit(
                    f"{figure}: the store has {interval.mean}, the tables {means[figure].mean}; "
                    "name the tables of the runs in this store"
                )
            means[figure] = interval
    for figure, interval in means.items():
        least = 0.0 if WITHIN_0_AND_1.search(figure) else -1.0
        if least == 0 or CORRELATIONS.search(figure):
            means[figure] = replace(
                interval, low=max(interval.low, least), high=min(interval.high, 1.0)
            )
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
            claim: outcome if all(run.get(claim) == outcome for run in verdicts) else "unclear"
            for claim, outcome in verdicts[0].items()
        },
        "estimates": {figure: interval.as_dict() for figure, interval in means.items()},
        "numbers": {},
    }


Values = Float[ndarray, " pairs"]


@dataclass(frozen=True)
class Ranked:
    """What one seed's rankings said of the pairs of a split, and what training did to these.

    `texts`: what is in every pair; `rivals`: by ranking, the one that its partial correlation holds
    fixed.
    """

    texts: tuple[str, ...]
    risks: Mapping[Predictor, Values]
    change: Values
    rivals: Mapping[str, Predictor]

    def figure(
        self, name: str, ranking: Predictor, drawn: Int[ndarray, "draws pairs"]
    ) -> Float[ndarray, " draws"]:
        """`spearman`, `auc` or `partial` of a ranking in every draw of pairs."""
        risk, fall = self.risks[ranking][drawn], -self.change[drawn]
        if name == "auc":
            return auc(risk, fall > 0)
        if name == "partial":
            return partial_rank_correlation(risk, fall, self.risks[self.rivals[ranking]][drawn])
        return np.asarray(rank_correlation(risk, fall))


def rankings_over_pairs(tables: Sequence[dict[str, Any]], store: Store) -> dict[str, Interval]:
    """The figures of rankings, with intervals over seeds and pairs."""
    if not all("foresight" in table["stages"] for table in tables):
        return {}
    by_seed = [_ranked(store, table) for table in tables]
    intervals = {}
    for split in by_seed[0]:
        seeds = [ranked[split] for ranked in by_seed]
        texts = [seed.texts for seed in seeds]
        for ranking in seeds[0].risks:
            for name in ("spearman", "auc", "partial"):

                def figure(
                    seed: int,
                    drawn: Int[ndarray, "draws pairs"],
                    seeds: Sequence[Ranked] = seeds,
                    name: str = name,
                    ranking: Predictor = ranking,
                ) -> Float[ndarray, " draws"]:
                    return seeds[seed].figure(name, ranking, drawn)

                interval = over_seeds_and_pairs(figure, texts)
                intervals[f"foresight/foresight/{split}/{ranking}/{name}"] = interval
    return intervals


def _ranked(store: Store, table: dict[str, Any]) -> dict[Split, Ranked]:
    """One run's rankings, split by split."""
    audited = list(read_rows(_folder(store, table, "audit") / "audit.jsonl", PairAudit))
    data, foreseen = _folder(store, table, "data"), _folder(store, table, "foresight")
    changes = list(read_rows(foreseen / "changes.jsonl", ChosenChange))
    rivals: dict[Split, dict[str, Any]] = {"train": {}, "heldout": {}}
    for row in read_rows(foreseen / "foresight.jsonl", Foresight):
        rivals[row.split][row.ranking] = row.given
    pairs = encoded_pairs(data, _folder(store, table, "base") / "model")
    overlaps = word_overlaps([row for row in audited if (row.split, row.pair_id) in pairs], pairs)
    training_pairs = sum(row.split == "train" for row in audited)
    changed = {(change.split, change.pair_id) for change in changes}
    ranked: dict[Split, Ranked] = {}
    for split, risks, change in risks_and_changes(audited, changes, overlaps, training_pairs):
        rows = {row.id: row for row in read_rows(data / f"{split}.jsonl", Example)}
        texts = []
        for audited_pair in audited:
            if audited_pair.split == split and (split, audited_pair.pair_id) in changed:
                row = rows[audited_pair.pair_id]
                texts.append(str((row.prompt, row.chosen, row.rejected)))
        ranked[split] = Ranked(tuple(texts), risks, change, rivals[split])
    return ranked


def _folder(store: Store, table: dict[str, Any], step: str) -> Path:
    """The stored result of a run's step."""
    made = table["stages"][step]
    place = store.place(made["stage"], made["key"])
    result = place.committed()
    if result is None:
        raise SystemExit(f"{step} of {table['name']} is not in the store: set DYNOLAB_HOME to its")
    return store.folder(place.address(result), result.manifest.digest)


if __name__ == "__main__":
    tables = [json.loads(Path(file).read_text()) for file in sys.argv[2:]]
    # Runs on another study's results, as those of `judge`, have no seed: they are given in order.
    order = [i if table["seeds"] is None else table["seeds"] for i, table in enumerate(tables)]
    file = ROOT / "deploy" / "studies" / "results" / f"{sys.argv[1]}.json"
    intervals = rankings_over_pairs(tables, open_store(Settings.from_environment()))
    write_table(over_seeds(sys.argv[1], order, tables, intervals), file)
