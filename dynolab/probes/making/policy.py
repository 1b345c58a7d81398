"""Probe rows sampled from the untrained policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynolab.data.chat import Conversation, Texts, Write, writer_of
from dynolab.data.probes.build import Missing, Watched
from dynolab.data.probes.kinds import PolicyKind
from dynolab.data.rows import ProbeRow
from dynolab.rollouts.sample import SampleConfig, sample_responses

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

VERSION = 1
"""Version of the prompt below; raise it when the wording changes."""

REPHRASE = "Please rephrase the text below: keep what it says, and say it in other words.\n\n{text}"


@dataclass(frozen=True)
class Policy:
    """A model before its training; rows record its `name`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str


def rows_from_policy(
    policy: Policy,
    watched: Sequence[Watched],
    *,
    kinds: Sequence[PolicyKind],
    sampling: SampleConfig,
) -> tuple[list[ProbeRow], list[Missing]]:
    """Samples the rows of some kinds; returns them and those that could not be made.

    `chosen_initial` is a response to the pair's prompt, `chosen_selfr` one to the request to
    rephrase the chosen answer, in the tokenizer's chat template if it has one. Both end before the
    next human turn. Empty responses are kept. The flag `cut` marks those that reached the maximum
    length.
    """
    write = writer_of(policy.tokenizer)
    rows, missing = [], []
    for kind in kinds:
        method = "sampled" if kind == "chosen_initial" else f"rephrased, prompt selfr-{VERSION}"
        made_by = f"{method}, by {policy.name} at temperature {sampling.temperature:g}"
        promptable, blank = _split(watched, kind)
        asked = [_prompt(write, pair, kind) for pair in promptable]
        responses = sample_responses(
            policy.model,
            policy.tokenizer,
            [texts.prompt for texts in asked],
            sampling,
            turns=[texts.turn for texts in asked],
        )
        for pair, response in zip(promptable, responses, strict=True):
            flags = () if response.finished else ("cut",)
            rows.append(pair.made(kind, response.text, made_by, *flags))
        missing += [
            Missing.of(pair, kind, "the chosen answer has no words to rephrase") for pair in blank
        ]
    return rows, missing


def _split(watched: Sequence[Watched], kind: PolicyKind) -> tuple[list[Watched], list[Watched]]:
    """Splits pairs by whether they have the text that the kind's prompt needs."""
    if kind == "chosen_initial":
        return list(watched), []
    texts = [(pair, pair.example.content(pair.example.chosen).strip()) for pair in watched]
    return [pair for pair, text in texts if text], [pair for pair, text in texts if not text]


def _prompt(write: Write, watched: Watched, kind: PolicyKind) -> Texts:
    row = watched.example
    if kind == "chosen_initial":
        return Texts(row.prompt, [], row.turn)
    request = REPHRASE.format(text=row.content(row.chosen).strip())
    return write(Conversation([{"role": "user", "content": request}]), row.id)
