"""Stage `counterfactual`: retrainings without some examples against what the ledger says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from dynolab.data.rows import read_rows
from dynolab.report.inputs.ledger import Ledger, read_ledger
from dynolab.results.counterfactual import Agreement, Dropped, Effect
from dynolab.results.ledger import FunctionalRow
from dynolab.results.study import ARGMAX, ProbeScore
from dynolab.statistics import rank_correlation, share_interval
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.page_helpers import PageConfig, send_page, stage_facts

WHOLE = "whole"
DRAWS = 2_000  # of the bootstrap


class CounterfactualConfig(PageConfig):
    """Which retraining went without which examples."""

    groups: tuple[Dropped, ...] = Field(description="Each is the name of an input, a training.")


def compare_retrainings(work: Work[CounterfactualConfig]) -> dict[str, float]:
    """Reads inputs `data`, `ledger`, `whole`, and one training for every group.

    Results: `effects.jsonl`, `agreement.json`, `counterfactual.html` and `figures/`.
    """
    from dynolab.report.ledger.counterfactual import write_counterfactual_page

    config = work.config
    ledger = read_ledger(work.input_folder("ledger"), work.input_folder("data"))
    with work.shown(len(config.groups)) as progress:
        whole = ends(work, WHOLE, ledger)
        effects = []
        for number, group in enumerate(config.groups, start=1):
            without = ends(work, group.name, ledger)
            effects += effects_of(group, ledger, whole, without)
            progress.update(number, group.name)
    agreement = agree(effects, config.groups)
    work.write_tables(effects=effects)
    (work.output / "agreement.json").write_text(agreement.model_dump_json(indent=1))
    write_counterfactual_page(
        effects,
        config.groups,
        agreement,
        name=config.name,
        settings=config.settings,
        stages=stage_facts(work),
        folder=work.output,
    )
    send_page(work)
    return work.log_metrics({f"counterfactual/{name}": float(v) for name, v in agreement})


def ends(work: Work[CounterfactualConfig], name: str, ledger: Ledger) -> dict[str, float]:
    """Every functional at the end of a training, from its last probe."""
    scores = list(read_rows(work.input_folder(name) / "probes.jsonl", ProbeScore))
    last = max(score.step for score in scores)
    known = {(str(s.split), s.kind, s.pair_id): s for s in scores if s.step == last}
    return {account.row.name: _value(account.row, known) for account in ledger.accounts}


def _value(row: FunctionalRow, known: Mapping[tuple[str, str, str], ProbeScore]) -> float:
    kind = "chosen" if row.kind == ARGMAX else row.kind
    scores = [known[row.split, kind, pair] for pair in row.pairs]
    values = [s.argmax_logp if row.kind == ARGMAX else s.logp for s in scores]
    return float(np.mean([value for value in values if value is not None]))


def effects_of(
    group: Dropped, ledger: Ledger, whole: Mapping[str, float], without: Mapping[str, float]
) -> list[Effect]:
    """Predicted and measured effect of a group on every functional."""
    places = [ledger.examples.index(name) for name in group.examples]
    return [
        Effect(
            group=group.name,
            functional=account.row.name,
            predicted=-float(ledger.by_example(account)[places].sum()),
            measured=without[account.row.name] - whole[account.row.name],
        )
        for account in ledger.accounts
    ]


def agree(effects: Sequence[Effect], groups: Sequence[Dropped]) -> Agreement:
    """LDS over the random groups, and the blamed groups' signs."""
    random = [group.name for group in groups if group.answer is None]
    names = list(dict.fromkeys(effect.functional for effect in effects))
    known = {(effect.group, effect.functional): effect for effect in effects}
    predicted, measured = (
        np.array([[getattr(known[g, name], part) for g in random] for name in names])
        for part in ("predicted", "measured")
    )
    lds, low, high = _lds(predicted, measured)
    blamed = [known[group.name, group.answer] for group in groups if group.answer is not None]
    hits = sum(effect.predicted * effect.measured > 0 for effect in blamed)
    share = share_interval(hits, len(blamed))
    return Agreement(
        groups=len(random),
        lds=lds,
        lds_low=low,
        lds_high=high,
        blamed=len(blamed),
        same_sign=share.mean,
        same_sign_low=share.low,
        same_sign_high=share.high,
    )


def _lds(predicted: np.ndarray, measured: np.ndarray) -> tuple[float, float, float]:
    """Functionals × groups; the interval is of a bootstrap over groups."""
    count = predicted.shape[1]
    if count < 3:
        return float("nan"), float("nan"), float("nan")
    draws = np.random.default_rng(0).integers(count, size=(DRAWS, count))
    scores = np.array(
        [
            rank_correlation(own[draws], real[draws])
            for own, real in zip(predicted, measured, strict=True)
        ]
    )
    whole = float(np.nanmean(rank_correlation(predicted, measured)))
    low, high = np.nanpercentile(np.nanmean(scores, axis=0), [2.5, 97.5])
    return whole, float(low), float(high)


COUNTERFACTUAL = Stage("counterfactual", 1, compare_retrainings)
