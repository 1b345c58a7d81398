"""The glossary: the terms of pages with their meanings, and links to them from a page's texts."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

TERMS: dict[str, tuple[str, str]] = {
    "chosen": ("chosen y⁺", "The answer that the data prefers."),
    "rejected": ("rejected y⁻", "The answer that the data puts second."),
    "argmax": (
        "y*",
        "What the model itself finds likeliest: its first token at every position along the chosen "
        "answer.",
    ),
    "gap": (
        "gap",
        "log π(y*) − log π(y⁺): how far the chosen answer lies below what the model likes best.",
    ),
    "log-probability": (
        "log π",
        "The log-probability of an answer after its prompt, summed over its tokens.",
    ),
    "nat": (
        "nats",
        "The unit of log π. One nat less is a probability 2.7 times smaller; ten, 22,000 times.",
    ),
    "held-out": ("held-out", "Watched but not trained on."),
    "force": (
        "force",
        "What a part of a training step (an answer, a token) does to log π of another answer, to "
        "first order; a push.",
    ),
    "observed": ("observed", "The answer that is pushed: its likelihood is watched."),
    "updating": ("updating", "The answer that pushes: training takes a step on it."),
    "first-order": (
        "first order",
        "As if the model were linear in its weights along a step. Exact for small steps; the page "
        "says how much it leaves.",
    ),
    "ledger": (
        "ledger",
        "What every answer of every training step did to a watched answer, from that step to the "
        "end; the entries add up to the measured change.",
    ),
    "squeezing": (
        "squeezing",
        "Pushing down an answer that is unlikely already moves its probability to y*, so that "
        "others fall with it.",
    ),
    "margin": ("margin", "log π(y⁺) − log π(y⁻), or its change."),
    "ches": (
        "CHES",
        "How alike the last layer sees both answers of a pair (Razin et al., arXiv 2410.08847).",
    ),
    "auc": (
        "AUC",
        "How often a ranking puts one that fell before one that did not; ½ is chance.",
    ),
    "rank-correlation": (
        "rank correlation",
        "Spearman’s: 1 for the same order, 0 for none, −1 for the reverse.",
    ),
    "replay": ("replay", "A recorded step, or a training, run again to the bit."),
}
"""Anchor → the word as a text says it, and what it means."""

_WORDS = {
    "chosen": "y⁺",
    "rejected": "y⁻",
    "argmax": r"y\*",
    "gap": r"\bgap\b",
    "log-probability": "log π",
    "nat": r"\bnats?\b",
    "held-out": r"\bheld[- ]out\b",
    "force": r"\b(?:forces?|push(?:es)?)\b",
    "first-order": r"\bfirst[- ]order\b",
    "squeezing": r"\bsqueezing\b",
    "rank-correlation": r"\brank correlations?\b",
    "auc": r"\bAUC\b",
    "ches": r"\bCHES\b",
}
_SAID = re.compile(
    "<code.*?</code>|<[^>]*>|"
    + "|".join(
        "(?P<{}>{})".format(anchor.replace("-", "_"), _WORDS.get(anchor, rf"\b{anchor}\b"))
        for anchor in TERMS
    ),
    re.IGNORECASE | re.DOTALL,
)
"""A term by its anchor; code and tags, in which no term is looked for, have none."""
_LINK = Markup('<a class="term" href="#term-{}" title="{}">{}</a>')


def with_terms(text: str) -> Markup:
    """The text, escaped, in which each term leads to the glossary where it first occurs."""
    anchors = {""}

    def link(match: re.Match[str]) -> str:
        anchor = (match.lastgroup or "").replace("_", "-")
        if anchor in anchors:
            return match[0]
        anchors.add(anchor)
        # What is matched has been escaped with the text around it.
        return _LINK.format(anchor, TERMS[anchor][1], Markup(match[0]))

    return Markup(_SAID.sub(link, str(escape(text))))


def terms_in(page: str) -> dict[str, tuple[str, str]]:
    """The terms that the links of a page's HTML lead to."""
    linked = set(re.findall(r'href="#term-([a-z-]+)"', page))
    return {anchor: term for anchor, term in TERMS.items() if anchor in linked}
