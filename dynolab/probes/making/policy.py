"""Probe rows that the untrained policy makes itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynolab.data.chat import Write, plain_writer, template_writer
from dynolab.data.probes.build import Watched
from dynolab.data.probes.kinds import PolicyKind
from dynolab.data.probes.missing import Missing
from dynolab.data.rows import ProbeRow
from dynolab.rollouts.sample import SampleConfig, sample_responses

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

VERSION = 1
"""Of the prompt below; raised with its wording."""

REPHRASE = "Please rephrase the text below: keep what it says, and say it in other words.\n\n{text}"


@dataclass(frozen=True)
class Policy:
    """A model before its training; `name` is what rows remember it by."""

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
    """The rows of some kinds, and those that could not be made.

    `chosen_initial` is a sample after the pair's prompt, `chosen_selfr` one after the request to
    rephrase its chosen answer, written by the tokenizer's chat template where it has one. Both end
    before the next human turn. A response that the policy leaves empty is kept: it is what the
    policy says. One that reached its longest before its end has the flag `cut`.
    """
    tokenizer = policy.tokenizer
    write = template_writer(tokenizer, policy.name) if tokenizer.chat_template else plain_writer
    rows, missing = [], []
    for kind in kinds:
        how = "sampled" if kind == "chosen_initial" else f"rephrased, prompt selfr-{VERSION}"
        made_by = f"{how}, by {policy.name} at temperature {sampling.temperature:g}"
        asked, silent = _split(watched, kind)
        prompts = [_prompt(write, pair, kind) for pair in asked]
        responses = sample_responses(policy.model, policy.tokenizer, prompts, sampling)
        for pair, response in zip(asked, responses, strict=True):
            flags = () if response.finished else ("cut",)
            rows.append(pair.row(kind, response.text, made_by, *flags))
        missing += [
            Missing.of(pair, kind, "the chosen answer has no words to rephrase") for pair in silent
        ]
    return rows, missing


def _split(watched: Sequence[Watched], kind: PolicyKind) -> tuple[list[Watched], list[Watched]]:
    """Pairs that have what a kind is made from, and those that lack it."""
    asked = [pair for pair in watched if kind == "chosen_initial" or pair.example.chosen.strip()]
    there = {(pair.split, pair.example.id) for pair in asked}
    return asked, [pair for pair in watched if (pair.split, pair.example.id) not in there]


def _prompt(write: Write, watched: Watched, kind: PolicyKind) -> str:
    if kind == "chosen_initial":
        return watched.example.prompt
    turn = {"role": "user", "content": REPHRASE.format(text=watched.example.chosen.strip())}
    return write([turn], watched.example.id)
