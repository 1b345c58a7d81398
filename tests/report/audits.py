"""An audit as a study leaves it: forces of all pairs that foresee, and pairs' own that do not."""

from __future__ import annotations

from functools import cache

import numpy as np

from dynolab.audit.foresight import foresight
from dynolab.data.rows import Example
from dynolab.report.inputs.study import Audit
from dynolab.results.audit import ChosenChange, PairAudit


@cache
def audit(
    *, trained: bool = True, text: str = "it is", mark: str = "", train: int = 24, held: int = 12
) -> Audit:
    """An audit; `mark` stands at the end of every pair's id."""
    rng = np.random.default_rng(4)
    rows, changes, texts = [], [], {}
    for number in range(train + held):
        split = "train" if number < train else "heldout"
        name = f"q{number:03d}{mark}"
        pull, push, change = rng.uniform(20, 60), rng.normal(-20, 20), rng.normal(-2, 2)
        rows.append(
            PairAudit(
                pair_id=name,
                split=split,
                chosen_tokens=8,
                rejected_tokens=9,
                chosen_logp=rng.normal(-14, 3),
                pull_up=pull,
                push_down=push,
                force=pull + push,
                from_all=change + rng.normal(0, 0.2),
                on_all=rng.normal(),
                ches=rng.normal(20, 9),
                ches_per_token=rng.normal(),
                likelihood_gap=rng.normal(9, 3),
                edit_distance=rng.uniform(),
                rejected_force=push,
                band="below" if pull + push < 0 else "inside",
            )
        )
        changes.append(ChosenChange(pair_id=name, split=split, change=change))
        texts[split, name] = Example(
            id=name,
            prompt=f"{text} what {number} ?",
            chosen=f" {text} {number} .",
            rejected=f" {text} not {number} .",
        )
    known = tuple(changes) if trained else ()
    return Audit(
        tuple(rows), texts, known, tuple(foresight(rows, known, dict.fromkeys(texts, 0.5), train))
    )
