"""Functionals that are measured at watched answers: entropy, KL, margin and a rule's reward."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import by_length
from dynolab.data.encode import Encoded
from dynolab.data.rows import PromptRow
from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.views import View
from dynolab.forces.ledger.functional import Answers, Functional, Term, WatchedFunctional
from dynolab.forces.ledger.measures import DivergenceFrom, Measure, entropy
from dynolab.grouping import grouped
from dynolab.results.ledger import MEASURED, FunctionalRow
from dynolab.rollouts.rewards import Reward, checked

ReferenceLogps = Callable[[Sequence[Encoded]], Iterable[Float[Tensor, "tokens vocabulary"]]]
"""log π_ref of the whole vocabulary at every token of some answers."""


class Source(NamedTuple):
    """What `kl` and `reward` are measured against; None where there is no such thing."""

    reference: ReferenceLogps | None = None
    reward: Reward | None = None


NO_SOURCE = Source()


def measured_means(
    kinds: Collection[str], answers: Answers, source: Source, field: str
) -> list[WatchedFunctional]:
    """The functionals of some of `MEASURED`, over the answers of each split that has such answers.

    **Arguments:** `kinds`: others are left out; `field`: the setting that names them, for messages.

    **Raises:** `ConfigError` for a kind whose answers, reference or rule are not there, and where
    the rule gives all answers one reward, so that the functional is 0 at any weights.
    """
    means: list[WatchedFunctional] = []
    by_split = grouped((answer[0].split, answer) for answer in answers)
    for kind in MEASURED:
        if kind not in kinds:
            continue
        of_kind: list[WatchedFunctional] = []
        for split, of_split in by_split.items():
            by_kind = grouped((answer[0].kind, answer) for answer in of_split)
            terms, pairs = _TERMS[kind](by_kind, source, field)
            if terms:
                name = f"{split}/{kind}"
                row = FunctionalRow(name=name, split=split, kind=kind, pairs=tuple(pairs))
                of_kind.append((row, Functional(name, tuple(terms))))
        if not of_kind:
            raise ConfigError(field, kind, f"{_NEEDS[kind]}, or none that fits the model's context")
        means += of_kind
    return means


@torch.no_grad()
def vocabulary_logps(
    policy: PolicyFunction, answers: Sequence[Encoded]
) -> list[Float[Tensor, "tokens vocabulary"]]:
    """log π of the whole vocabulary at every token of some answers, on the host, in their order."""
    logps: dict[int, Float[Tensor, "tokens vocabulary"]] = {}
    for members in by_length(answers, policy.batch_tokens):
        batch = policy.batch([answers[member] for member in members])
        observed = policy.observed({}, batch, View.vocabulary(), forward_mode=False).cpu()
        lengths = batch.sequence_length.tolist()
        logps |= zip(members, observed.split(lengths), strict=True)
    return [logps[number] for number in range(len(answers))]


ByKind = Mapping[str, Answers]
Terms = tuple[list[Term], list[str]]
"""Terms of a functional, and the pairs whose answers they are of."""

_NEEDS = {
    "entropy": "no watched answer is of kind chosen",
    "kl": "no watched answer is of kind chosen",
    "margin": "no watched pair has answers of kinds chosen and rejected",
    "contrast": "no watched prompt has answers of kinds unwanted and wanted",
    "reward": "no answer is watched",
}


def _entropy(answers: ByKind, source: Source, field: str) -> Terms:
    return _token_mean(answers.get("chosen", ()), lambda _: entropy)


def _divergence(answers: ByKind, source: Source, field: str) -> Terms:
    if source.reference is None:
        raise ConfigError(field, "kl", "there is no reference model to measure it from")
    chosen = answers.get("chosen", ())
    logps = source.reference([sequence for _, sequence in chosen])
    measures = [DivergenceFrom(of_answer) for of_answer in logps]
    return _token_mean(chosen, measures.__getitem__)


def _token_mean(answers: Answers, measure_of: Callable[[int], Measure]) -> Terms:
    """The mean over all tokens of some answers."""
    tokens = sum(sequence.response_length for _, sequence in answers)
    terms = []
    for place, (_, sequence) in enumerate(answers):
        terms.append(Term(sequence, 1 / tokens, measure_of(place)))
    return terms, [row.pair_id for row, _ in answers]


def _difference(first: str, second: str, answers: ByKind) -> Terms:
    """The mean over pairs of what one kind of answer is above another one."""
    seconds = {row.pair_id: sequence for row, sequence in answers.get(second, ())}
    both = [
        (row.pair_id, sequence)
        for row, sequence in answers.get(first, ())
        if row.pair_id in seconds
    ]
    terms = []
    for pair, sequence in both:
        terms += [Term(sequence, 1 / len(both)), Term(seconds[pair], -1 / len(both))]
    return terms, [pair for pair, _ in both]


def _margin(answers: ByKind, source: Source, field: str) -> Terms:
    return _difference("chosen", "rejected", answers)


def _contrast(answers: ByKind, source: Source, field: str) -> Terms:
    return _difference("unwanted", "wanted", answers)


def _reward(answers: ByKind, source: Source, field: str) -> Terms:
    if source.reward is None:
        raise ConfigError(field, "reward", "name the rule that gives rewards: reward=")
    right = {row.pair_id: row.response for row, _ in answers.get("chosen", ())}
    listed = [answer for of_kind in answers.values() for answer in of_kind]
    rewards = []
    for row, _ in listed:
        asked = PromptRow(id=row.pair_id, prompt=row.prompt, answer=right.get(row.pair_id))
        given = source.reward(row.prompt, [row.response], asked)
        rewards += checked("of the watched answers", given, 1, row.pair_id)
    if rewards and min(rewards) == max(rewards):
        remedy = "the rule gives all watched answers this reward; watch better and worse ones"
        raise ConfigError(field, rewards[0], remedy)
    mean = fmean(rewards) if rewards else 0.0
    terms = []
    for (_, sequence), reward in zip(listed, rewards, strict=True):
        terms.append(Term(sequence, (reward - mean) / len(rewards)))
    return terms, list(dict.fromkeys(row.pair_id for row, _ in listed))


_TERMS: Mapping[str, Callable[[ByKind, Source, str], Terms]] = {
    "entropy": _entropy,
    "kl": _divergence,
    "margin": _margin,
    "contrast": _contrast,
    "reward": _reward,
}
