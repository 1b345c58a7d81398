"""Probe rows that a model writes: the untrained policy, or a judge-class model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynolab.data.chat import Conversation, Texts, Write, writer_of
from dynolab.data.probes.build import Missing, Watched
from dynolab.data.probes.kinds import OF_REJECTED, ORIGINAL, PolicyKind, WriterKind
from dynolab.data.rows import ProbeRow
from dynolab.endpoint import Answered, Endpoint, Failure, Request
from dynolab.endpoint.client import OnProgress, ignore_progress
from dynolab.rollouts.decoding import sample_responses
from dynolab.rollouts.generator import SampleConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


SELFR_VERSION = 1
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
        method = (
            "sampled" if kind == "chosen_initial" else f"rephrased, prompt selfr-{SELFR_VERSION}"
        )
        made_by = f"{method}, by {policy.name} at temperature {sampling.temperature:g}"
        promptable, blank = _split(watched, kind)
        prompts = [_prompt(write, pair, kind) for pair in promptable]
        responses = sample_responses(
            policy.model,
            policy.tokenizer,
            [texts.prompt for texts in prompts],
            sampling,
            turns=[texts.turn for texts in prompts],
        )
        for pair, response in zip(promptable, responses, strict=True):
            flags = () if response.finished else ("cut",)
            rows.append(pair.made(kind, response.text, made_by, *flags))
        for pair in blank:
            missing.append(Missing.of(pair, kind, "the chosen answer has no words to rephrase"))
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


VERSION = 1
"""Version of the prompts below, recorded in the rows; raise it when the wording changes."""

_FORM = "Write nothing else, and put your text between <answer> and </answer>."

PROMPTS = {
    "semantic": "Rewrite the text below so that it says the same in other words and another "
    f"sentence structure. Keep its language, its tone and about its length. {_FORM}\n\n{{text}}",
    "format": "Write a text with the form of the text below and another meaning: the same "
    "sentence structures, the same tone and about as many words, about an entirely different "
    f"subject. {_FORM}\n\n{{text}}",
    "human": "Write one passage of {words} words, as a person might write it, about {subject}. "
    f"{_FORM}",
}
PROMPT_OF: dict[WriterKind, str] = {
    "chosen_gptsemantic": "semantic",
    "reject_gptsemantic": "semantic",
    "chosen_gptformat": "format",
    "reject_gptformat": "format",
    "irr_hum": "human",
}
SUBJECTS = (
    "a journey by train",
    "a neighbour's garden",
    "the first snow",
    "an old bicycle",
    "a lost umbrella",
    "a market in the morning",
    "a chess game",
    "a broken clock",
    "the sea",
    "a school play",
    "a stray dog",
    "a mountain hut",
    "a long queue",
    "a birthday",
    "a bakery",
    "a night shift",
    "a letter",
    "a flooded cellar",
    "a choir",
    "a lighthouse",
    "a football match",
    "moving house",
    "a thunderstorm",
    "a museum visit",
)
"""Subjects of `irr_hum`, so that pairs get different passages."""

_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.DOTALL)


def rows_from_writer(
    endpoint: Endpoint,
    watched: Sequence[Watched],
    *,
    kinds: Sequence[WriterKind],
    on_progress: OnProgress = ignore_progress,
) -> tuple[list[ProbeRow], list[Missing]]:
    """Has rows written, pair by pair; returns them and those that could not be made, with reasons.

    `…gptsemantic` says the same in other words, `…gptformat` something else in the same form,
    `irr_hum` is a passage of as many words as the chosen answer (Ren & Sutherland, arXiv
    2407.10490, §4). Flags: `cut` for a text that reached the maximum length, `untagged` for an
    answer without the requested tags, which is kept in full. A pair without a rejected answer has
    no rows of that side.

    **Arguments:**

    - `endpoint`: made with `usable=has_text`, so that it retries answers without text.

    **Raises:** as `Endpoint.ask`.
    """
    promptable, rows, missing = [], [], []
    for pair in watched:
        for kind in kinds:
            if kind in OF_REJECTED and pair.example.rejected is None:
                continue
            if _original(pair, kind):
                promptable.append((pair, kind))
            else:
                missing.append(Missing.of(pair, kind, "the answer to rewrite has no words"))
    answers = endpoint.ask([_request(pair, kind) for pair, kind in promptable], on_progress)
    for (pair, kind), answer in zip(promptable, answers, strict=True):
        if isinstance(answer, Failure):
            missing.append(Missing.of(pair, kind, answer.reason))
        elif answer.declined:
            missing.append(Missing.of(pair, kind, "the writer declined"))
        else:
            rows.append(_row(pair, kind, answer, _made_by(endpoint, kind)))
    return rows, missing


def has_text(answer: str) -> bool:
    """Whether an answer has text: between its tags or, without tags, anywhere."""
    return bool(_text(answer)[0])


def _text(answer: str) -> tuple[str, bool]:
    """The answer's text, and whether it was between tags."""
    match = _ANSWER.search(answer)
    return (match[1].strip(), True) if match else (answer.strip(), False)


def _row(watched: Watched, kind: WriterKind, answer: Answered, made_by: str) -> ProbeRow:
    text, tagged = _text(answer.text)
    flags = [] if tagged else ["untagged"]
    if answer.cut:
        flags.append("cut")
    return watched.made(kind, text, made_by, *flags)


def _made_by(endpoint: Endpoint, kind: WriterKind) -> str:
    config = endpoint.config
    suffix = "" if config.temperature is None else f" at temperature {config.temperature:g}"
    return f"written by {config.model}{suffix}, prompt {PROMPT_OF[kind]}-{VERSION}"


def _original(watched: Watched, kind: WriterKind) -> str:
    side = ORIGINAL.get(kind, "chosen")
    row = watched.example
    return row.content((row.chosen if side == "chosen" else row.rejected) or "").strip()


def _request(watched: Watched, kind: WriterKind) -> Request:
    prompt, text = PROMPTS[PROMPT_OF[kind]], _original(watched, kind)
    if kind != "irr_hum":
        return Request(text=prompt.format(text=text))
    pair = f"{watched.split}/{watched.example.id}"
    subject = SUBJECTS[int(hashlib.sha256(pair.encode()).hexdigest(), 16) % len(SUBJECTS)]
    return Request(text=prompt.format(words=len(text.split()), subject=subject), sample=pair)
