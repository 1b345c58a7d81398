"""How well what is said of findings is backed by kept tables of runs.

    python -m tests.benchmarks.evidence

Prints one JSON object; nothing is run but the comparison of texts and tables.

- `figures_checked`: figures in the texts on findings that a kept table or a study file says;
  `figures_wrong`: those that it does not say. `stale`: those from a table of which a stage has been
  changed since; `tables_stale`: these tables.
- `claims_total`: rows of the table of claims. `claims_decided_…`: of those tried in built-in
  worlds, and on real text, the share that a run there decides, either way.
  `claims_tried_on_authors_logs`: those that logs of the papers' authors can carry; of these they
  decide the share `claims_decided_on_authors_logs`.
- `headline_seeds_min`: seeds of the tables that README's figures are from, the fewest.
- `studies_without_result`: study files without a kept table.
- `cells_over_pairs`: cells of the table with an interval over seeds and pairs.
- `verdicts_with_q`: of the table's cells with an interval, those with a false discovery rate.
  `rankings_with_trivial_baselines`: of the tables with rankings of pairs, those with trivial ones.
  `force_adds_over_trivial`: partial rank correlations. `remedies_that_win_held_out`: of
  `remedies_judged_held_out` where the baseline's margin grows held out.
- `named_over_random_nats`: what leaving out the pairs that a ledger names did to fallen answers,
  less what leaving out as many random ones did, by table. `lds_over_ceiling`: LDS over that of the
  same removals in another order. `objectives_in_a_kept_study`: different losses of one kept table.
- `lds_groups`: groups left out for the LDS in the texts; `baselines_compared`: other estimates of
  influence beside the ledger's there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from docs import claims
from dynolab.audit.foresight import TRIVIAL
from tests.benchmarks.figures import ROOT, STUDIES, report
from tests.deploy.test_findings import SOURCE, TEXTS, check, figures_of, paragraphs

AT_LEAST = {
    "claims_total": 45,
    "claims_decided_builtin": 0.9,
    "claims_decided_real_text": 0.75,
    "verdicts_with_q": 1.0,
    "rankings_with_trivial_baselines": 1.0,
    "remedies_judged_held_out": 12,
    "claims_tried_on_authors_logs": 12,
    "headline_seeds_min": 5,
    "objectives_in_a_kept_study": 12,
    "lds_groups": 40,
    "baselines_compared": 2,
}
AT_MOST = {"figures_wrong": 0, "stale": 0, "studies_without_result": 8}
REAL_TEXT = ("tinystories", "degeneration")


def sources() -> Iterator[tuple[str, str | None, str]]:
    """Every sourced figure with the table it is from, if any, and its line."""
    for text in TEXTS:
        for _, lines in paragraphs(text):
            for line in lines:
                parts = SOURCE.fullmatch(line)
                assert parts, line
                if parts["table"] or parts["name"] != "name":
                    yield parts["figure"], parts["table"], line


def is_wrong(line: str) -> bool:
    """Whether the source does not say the figure."""
    try:
        check(line)
    except (AssertionError, KeyError, FileNotFoundError):
        return True
    return False


def decided(rows: list[list[claims.Cell]]) -> float:
    """Of the claims with a cell, the share with one that is decided: no difference is, too."""
    tried = [cells for cells in rows if cells]
    open_ones = ("unclear", "not measured")
    return sum(any(c.outcome not in open_ones for c in cells) for cells in tried) / len(tried)


def force_adds(tables: dict[str, dict[str, Any]]) -> dict[str, list[float]]:
    """Partial rank correlation of the force of all pairs, given the best ranking without gradients,
    by table over seeds and split."""
    added = {}
    for name, table in tables.items():
        for split in ("train", "heldout"):
            known = table["estimates"].get(f"foresight/foresight/{split}/from_all/partial")
            if known is not None:
                added[f"{name}/{split}"] = [known["mean"], known["low"], known["high"]]
    return added


def with_trivial_rankings(tables: dict[str, dict[str, Any]]) -> float:
    """Of the tables with rankings of pairs, the share that has the trivial ones beside."""
    figures = [{**table["estimates"], **table["numbers"]} for table in tables.values()]
    ranked = [known for known in figures if any("/from_all/spearman" in name for name in known)]
    complete = [
        known
        for known in ranked
        if all(
            any(f"train/{ranking}/" in name for name in known)
            for ranking in TRIVIAL
            if ranking != "chosen_tokens"  # all of one length have no rank
        )
    ]
    return len(complete) / len(ranked)


def winners(tables: dict[str, dict[str, Any]]) -> tuple[list[str], int]:
    """Remedies whose held-out answers clearly win against the baseline's, where its margin grows
    held out and a rule judges; and how many were judged."""
    won, judged = [], 0
    for name, table in tables.items():
        known = table["estimates"]
        margin = known.get("means/dpo/heldout/margin")
        if margin is None or margin["low"] <= 0:
            continue
        for figure, share in known.items():
            if figure.startswith("means/") and figure.endswith("/heldout/won"):
                judged += 1
                if share["low"] is not None and share["low"] > 0.5:
                    won.append(f"{name}/{figure.split('/')[1]}")
    return won, judged


def with_q(rows: list[list[claims.Cell]]) -> float:
    """Of the cells with an interval, the share with a q; claims about cases have none."""
    judged = [cell for cells in rows for cell in cells if cell.p is not None]
    return sum(cell.q is not None for cell in judged) / len(judged)


def named_over_random(tables: dict[str, dict[str, Any]]) -> dict[str, list[float]]:
    """Mean and interval in nats, by table."""
    effects = {}
    for name, table in tables.items():
        effect = table["estimates"].get("removals/without-named/against_random")
        if effect is not None:
            effects[name] = [effect["mean"], effect["low"], effect["high"]]
        for figure, mean in table["numbers"].items():
            if figure.endswith("/ledger over random"):
                ends = [table["numbers"][f"{figure}_{end}"] for end in ("low", "high")]
                effects[name] = [mean, *ends]
    return effects


def over_ceiling(tables: dict[str, dict[str, Any]]) -> dict[str, float]:
    """LDS over that of the same removals in another order, by table and method."""
    shares = {}
    for name, table in tables.items():
        for figure, share in table["numbers"].items():
            if figure.endswith("/of_ceiling"):
                shares[f"{name}/{figure.split('/')[-2]}"] = share
        # Of lines: `lds_heldout_OPTIMIZER_METHOD`, and without a method the lines themselves.
        estimates = table["estimates"]
        for figure in estimates:
            optimizer, separator, _ = figure.partition("_another_order")
            if separator and optimizer.startswith("lds_heldout_"):
                for method in estimates:
                    if method.startswith(optimizer):
                        share = estimates[method]["mean"] / estimates[figure]["mean"]
                        shares[f"{name}/{method}"] = share
    return shares


def objectives(study: str) -> int:
    """How many different losses the arms of a study file have."""
    settings = yaml.safe_load((STUDIES / f"{study.replace('-', '_')}.yaml").read_text())
    losses = set()
    for arm in settings.get("arms", {}).values():
        if "objective" in arm:
            objective = arm["objective"]
            losses.add(str((objective["name"], objective.get("loss_type"))))
    return len(losses)


def main() -> None:
    """Prints the figures beside their bars."""
    tables, sourced = claims.tables(), list(sources())
    old = {name for name, table in tables.items() if claims.stale(table)}
    rows = [cells for own in claims.claims().values() for cells in own.values()]
    builtin, text, authors = (
        [[c for c in cells if chosen(c)] for cells in rows]
        for chosen in (
            lambda c: c.column == claims.MADE,
            lambda c: c.table.endswith(REAL_TEXT),
            lambda c: c.column == claims.AUTHORS,
        )
    )
    seeds = {n: len(t["seeds"]) if isinstance(t["seeds"], list) else 1 for n, t in tables.items()}
    in_readme = set(figures_of((ROOT / "README.md").read_text()))
    headlines = [t for figure, t, _ in sourced if figure in in_readme and t in seeds]
    studies = {f.stem.replace("_", "-") for f in STUDIES.glob("*.yaml")}
    lds = [(n, k) for n, t in tables.items() for k in t["numbers"] if k.endswith("/lds")]
    groups = [tables[n]["numbers"][f"{k.removesuffix('lds')}groups"] for n, k in lds]
    report(
        {
            "figures_checked": len(sourced),
            "figures_wrong": sum(is_wrong(line) for _, _, line in sourced),
            "stale": sum(table in old for _, table, _ in sourced),
            "tables_stale": len(old),
            "claims_total": len(rows),
            "claims_decided_builtin": decided(builtin),
            "claims_decided_real_text": decided(text),
            "cells_over_pairs": sum(c.figures[0].pairs is not None for cs in rows for c in cs),
            "verdicts_with_q": with_q(rows),
            "rankings_with_trivial_baselines": with_trivial_rankings(tables),
            "force_adds_over_trivial": force_adds(tables),
            "remedies_that_win_held_out": winners(tables)[0],
            "remedies_judged_held_out": winners(tables)[1],
            "named_over_random_nats": named_over_random(tables),
            "lds_over_ceiling": over_ceiling(tables),
            "objectives_in_a_kept_study": max(map(objectives, studies & tables.keys())),
            "claims_tried_on_authors_logs": sum(map(bool, authors)),
            "claims_decided_on_authors_logs": decided(authors),
            "headline_seeds_min": min(seeds[str(table)] for table in headlines),
            "studies_without_result": len(studies - tables.keys()),
            "lds_groups": min(groups, default=None),
            "baselines_compared": len({k.split("/")[-2] for _, k in lds}) - 1,
        },
        at_least=AT_LEAST,
        at_most=AT_MOST,
    )


if __name__ == "__main__":
    main()
