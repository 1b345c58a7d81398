"""Probe rows sampled from the untrained policy."""

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
    tokenizer = policy.tokenizer
    write = template_writer(tokenizer, policy.name) if tokenizer.chat_template else plain_writer
    rows, missing = [], []
    for kind in kinds:
        method = "sampled" if kind == "chosen_initial" else f"rephrased, prompt selfr-{VERSION}"
        made_by = f"{method}, by {policy.name} at temperature {sampling.temperature:g}"
        promptable, blank = _split(watched, kind)
        prompts = [_prompt(write, pair, kind) for pair in promptable]
        responses = sample_responses(policy.model, policy.tokenizer, prompts, sampling)
        for pair, response in zip(promptable, responses, strict=True):
            flags = () if response.finished else ("cut",)
            rows.append(pair.row(kind, response.text, made_by, *flags))
        missing += [
            Missing.of(pair, kind, "the chosen answer has no words to rephrase") for pair in blank
        ]
    return rows, missing


def _split(watched: Sequence[Watched], kind: PolicyKind) -> tuple[list[Watched], list[Watched]]:
    """Splits pairs by whether they have the text that the kind's prompt needs."""
    if kind == "chosen_initial":
        return list(watched), []
    promptable = [pair for pair in watched if pair.example.chosen.strip()]
    return promptable, [pair for pair in watched if not pair.example.chosen.strip()]


def _prompt(write: Write, watched: Watched, kind: PolicyKind) -> str:
    if kind == "chosen_initial":
        return watched.example.prompt
    turn = {"role": "user", "content": REPHRASE.format(text=watched.example.chosen.strip())}
    return write([turn], watched.example.id)
