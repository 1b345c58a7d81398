"""Tests statements about one gradient step on a softmax, on random cases.

Claims 1 to 5 of Ren & Sutherland (arXiv 2407.10490, §3.3 and the notebook of their code): 1 the
pushed class falls; 2 the likeliest other class rises; 3 the peakier the distribution, the more
classes fall; 4 the less likely the pushed class, the more classes fall, the further they fall, and
the more the likeliest other gains; 5 the larger the step, the stronger. The notebook also states
that the rich get richer and the poor get poorer. The other statements follow from
`Δ log p_i = η (p_i + p_y − Σ_j p_j²) + O(η²)` and from its concavity in η.

Table `counts`: one row for each `statement` and number of `classes`. `violations` counts the random
cases that violate the statement; if it concerns several classes of a case, the case counts with the
share of them that violate it, and `cases` counts the cases with at least one such class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from experiments.chapters.squeezing.softmax import (
    first_order,
    likeliest_other,
    rises,
    stepped,
    stepped_elsewhere,
    stepped_with_features,
)

ROUNDING = 1e-12
"""Rounding error allowed in float64, in nats; a smaller change is no violation."""

FEATURES = 4
"""Dimension d of the features, in cases where they move."""

_CHUNK_NUMBERS = 2_000_000
_SMALL_STEP = 1e-5


@dataclass(frozen=True)
class Cases:
    """Random distributions with a pushed class and a step η each; `generator` for further draws."""

    logp: Float[Tensor, "cases classes"]
    label: Int[Tensor, " cases"]
    step: Float[Tensor, " cases"]
    generator: torch.Generator

    @cached_property
    def moved(self) -> Float[Tensor, "cases classes"]:
        """Δ log p of all classes by the push."""
        return self.change()

    def change(
        self, step: Tensor | None = None, logp: Tensor | None = None
    ) -> Float[Tensor, "cases classes"]:
        """Δ log p by a push of another size, or at another distribution."""
        start = self.logp if logp is None else logp
        return stepped(start, self.label, -(self.step if step is None else step)) - start

    def of(self, classes: Int[Tensor, " cases"], values: Tensor) -> Float[Tensor, " cases"]:
        """The value of one class per case."""
        return values.gather(1, classes[:, None]).squeeze(1)

    def others(self) -> Bool[Tensor, "cases classes"]:
        """All classes but the pushed one."""
        return torch.ones_like(self.logp, dtype=torch.bool).scatter(1, self.label[:, None], False)

    def between(self, low: float, high: float) -> Float[Tensor, " cases"]:
        """One log-uniform random number per case."""
        return log_uniform(len(self.label), low, high, self.generator)


def log_uniform(
    count: int, low: float, high: float, generator: torch.Generator
) -> Float[Tensor, " count"]:
    """`low (high/low)^u`, u uniform on [0, 1)."""
    return low * (high / low) ** torch.rand(count, generator=generator, dtype=torch.float64)


def random_cases(count: int, classes: int, generator: torch.Generator) -> Cases:
    """Normal logits times a factor between 0.1 and 5, any class, η between 0.01 and 10."""
    logits = torch.randn(count, classes, generator=generator, dtype=torch.float64)
    scale = log_uniform(count, 0.1, 5.0, generator)
    label = torch.randint(classes, (count,), generator=generator)
    step = log_uniform(count, 0.01, 10.0, generator)
    return Cases((logits * scale[:, None]).log_softmax(-1), label, step, generator)


Violated = Callable[[Cases], Bool[Tensor, " cases"] | Float[Tensor, " cases"]]
"""Whether a case violates a statement, or the share of the classes concerned that violate it: NaN
if the case has none."""


def label_rises(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against claim 1: `log p'_y > log p_y`."""
    return cases.of(cases.label, cases.moved) > ROUNDING


def best_falls(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against claim 2: `log p'_{i*} < log p_{i*}`."""
    return cases.of(likeliest_other(cases.logp, cases.label), cases.moved) < -ROUNDING


def fewer_fall_when_peakier(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against claim 3: at a temperature of 1/f, 1 < f < 4, fewer classes fall."""
    sharper = (cases.logp * cases.between(1.0, 4.0)[:, None]).log_softmax(-1)
    return _falling(cases, cases.change(logp=sharper)) < _falling(cases, cases.moved)


def another_rises_beside_a_peak(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against claim 3's limit: one other class holds more than 0.9, but a further one rises.

    There `p_i + p_y < 0.1 < Σ_j p_j²` for all but the peak.
    """
    peak = torch.rand(len(cases.label), 1, generator=cases.generator, dtype=torch.float64)
    best = likeliest_other(cases.logp, cases.label)[:, None]
    rest = cases.logp.scatter(1, best, -torch.inf).log_softmax(-1) + (0.1 * peak).log()
    peaked = rest.scatter(1, best, (1 - 0.1 * peak).log())
    return (cases.change(logp=peaked).scatter(1, best, -torch.inf) > ROUNDING).any(1)


def fewer_fall_when_rarer(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against claim 4: with the odds of y lowered, fewer classes fall."""
    return _falling(cases, cases.change(logp=_rarer(cases))) < _falling(cases, cases.moved)


def falls_less_when_rarer(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against claim 4: with the odds of y lowered, a class that fell falls less far."""
    before, rarer = cases.moved, cases.change(logp=_rarer(cases))
    return ((before < 0) & (rarer > before + ROUNDING) & cases.others()).any(1)


def best_gains_less_when_rarer(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against claim 4: with the odds of y lowered, the probability of i* gains less."""
    best, rarer = likeliest_other(cases.logp, cases.label), _rarer(cases)
    before, after = (
        cases.of(best, (logp + cases.change(logp=logp)).exp() - logp.exp())
        for logp in (cases.logp, rarer)
    )
    return after < before - ROUNDING


def best_shares_less_when_rarer(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against claim 4, read as a share: with the odds of y lowered, i* takes less of what rises."""
    best, shares = likeliest_other(cases.logp, cases.label), []
    for logp in (cases.logp, _rarer(cases)):
        gains = (logp + cases.change(logp=logp)).exp() - logp.exp()
        shares.append(cases.of(best, gains) / gains.clamp(min=0).sum(1))
    return shares[1] < shares[0] - ROUNDING


def poor_gain(cases: Cases) -> Float[Tensor, " cases"]:
    """Against “the poor get poorer”: of the others below their median, the share that rises."""
    others = cases.logp.masked_fill(~cases.others(), torch.inf)
    half = (cases.logp.shape[1] - 1) // 2
    return _share(cases.moved > ROUNDING, others <= others.kthvalue(half, 1, keepdim=True).values)


def rich_lose(cases: Cases) -> Float[Tensor, " cases"]:
    """Against “the rich get richer”: of the others with more than 1/V, the share that falls."""
    rich = (cases.logp > -math.log(cases.logp.shape[1])) & cases.others()
    return _share(cases.moved < -ROUNDING, rich)


def _share(
    hit: Bool[Tensor, "cases classes"], among: Bool[Tensor, "cases classes"]
) -> Float[Tensor, " cases"]:
    """The share of `among` in `hit`; NaN if `among` is empty."""
    return (hit & among).sum(1).double() / among.sum(1)


def weaker_when_larger(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against claim 5: a larger step lets y fall less or i* rise less."""
    small, large = cases.moved, cases.change(cases.step * cases.between(1.0, 10.0))
    best = likeliest_other(cases.logp, cases.label)
    less_fall = cases.of(cases.label, large) > cases.of(cases.label, small) + ROUNDING
    return less_fall | (cases.of(best, large) < cases.of(best, small) - ROUNDING)


def recovers_when_larger(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against claim 5: what falls at one step has fallen less at a larger one."""
    small, large = cases.moved, cases.change(cases.step * cases.between(1.0, 10.0))
    return ((small < 0) & (large > small + ROUNDING)).any(1)


def not_concave(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against claim 5: `log p'_i/p_i` at the middle of two steps lies below the chord."""
    end = cases.step * cases.between(1.0, 10.0)
    chord = (cases.moved + cases.change(end)) / 2
    return (cases.change((cases.step + end) / 2) < chord - ROUNDING).any(1)


def rule_errs(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against the rule: a tiny step moves a class the other way.

    `|Δ log p_i/η − slope| ≤ η/2`, so classes whose slope is nearer to zero than η are left out.
    """
    small = torch.full_like(cases.step, _SMALL_STEP)
    slope = first_order(cases.logp, cases.label, -1.0)
    wrong = (cases.change(small) > 0) != rises(cases.logp, cases.label)
    return (wrong & (slope.abs() > _SMALL_STEP)).any(1)


def rises_against_rule(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against the rule at large steps: a class that it predicts to fall rises."""
    return (~rises(cases.logp, cases.label) & (cases.moved > ROUNDING)).any(1)


def label_rises_elsewhere(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against the last-layer picture: y rises at another context with `h_o·h_u > 0`."""
    return cases.of(cases.label, _elsewhere(cases)) > ROUNDING


def best_falls_elsewhere(cases: Cases) -> Bool[Tensor, " cases"]:
    """Against the last-layer picture: the updated context's i* falls at another context."""
    return cases.of(likeliest_other(cases.logp, cases.label), _elsewhere(cases)) < -ROUNDING


def best_falls_with_features(cases: Cases) -> Bool[Tensor, " cases"]:
    """With moving features: i* falls, which is possible because `W Wᵀ` couples classes."""
    count, classes = cases.logp.shape
    normal = torch.randn(
        count, classes + 1, FEATURES, generator=cases.generator, dtype=torch.float64
    )
    head, feature = normal[:, :classes], normal[:, classes]
    before = torch.einsum("ncf,nf->nc", head, feature).log_softmax(-1)
    after = stepped_with_features(head, feature, cases.label, -_SMALL_STEP * cases.step)
    return cases.of(likeliest_other(before, cases.label), after - before) < -ROUNDING


STATEMENTS: Mapping[str, Violated] = {
    "label_falls": label_rises,
    "best_rises": best_falls,
    "peakier_more_fall": fewer_fall_when_peakier,
    "peak_alone_rises": another_rises_beside_a_peak,
    "rarer_more_fall": fewer_fall_when_rarer,
    "rarer_fall_further": falls_less_when_rarer,
    "rarer_best_gains_more": best_gains_less_when_rarer,
    "rich_get_richer": rich_lose,
    "poor_get_poorer": poor_gain,
    "larger_is_stronger": weaker_when_larger,
    "fallen_stays_fallen": recovers_when_larger,
    "concave": not_concave,
    "rule": rule_errs,
    "rule_for_good": rises_against_rule,
    "elsewhere_label_falls": label_rises_elsewhere,
    "elsewhere_best_rises": best_falls_elsewhere,
    "features_best_rises": best_falls_with_features,
    "rarer_best_shares_more": best_shares_less_when_rarer,
}
"""Every statement with the test for its violation."""


def count_violations(count: int, classes: int, seed: int) -> Iterator[dict[str, Any]]:
    """Counts every statement's violations among `count` random cases."""
    rows = max(1, _CHUNK_NUMBERS // classes)
    generator = torch.Generator().manual_seed(seed)
    violations, tried = dict.fromkeys(STATEMENTS, 0.0), dict.fromkeys(STATEMENTS, 0)
    for start in range(0, count, rows):
        cases = random_cases(min(rows, count - start), classes, generator)
        for statement, violated in STATEMENTS.items():
            share = violated(cases).double()
            violations[statement] += float(share.nansum())
            tried[statement] += int(share.isfinite().sum())
    for statement in STATEMENTS:
        yield {
            "statement": statement,
            "classes": classes,
            "cases": tried[statement],
            "violations": violations[statement],
        }


def _falling(cases: Cases, change: Float[Tensor, "cases classes"]) -> Int[Tensor, " cases"]:
    return ((change < 0) & cases.others()).sum(1)


def _rarer(cases: Cases) -> Float[Tensor, "cases classes"]:
    """The distributions with the odds of y lowered by a factor between 1 and 1000."""
    lowered = cases.of(cases.label, cases.logp) - cases.between(1.0, 1_000.0).log()
    return cases.logp.scatter(1, cases.label[:, None], lowered[:, None]).log_softmax(-1)


def _elsewhere(cases: Cases) -> Float[Tensor, "cases classes"]:
    """Δ log p of another random context by a push on this one."""
    count, classes = cases.logp.shape
    other = random_cases(count, classes, cases.generator).logp
    return stepped_elsewhere(other, cases.logp, cases.label, -cases.step) - other
