"""What a tokenizer does not know, and where it reads otherwise than its own `tokenizer.json`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

SAMPLES = (
    "Once upon a time, there was a little girl.",
    "  Two spaces, a tab\tand a line\n\nbetween paragraphs.",
    "“Quotes”, an ellipsis… and a dash — it’s café-like.",
    "def f(x):\n    return {x: [1, 2]} % 3.14",
    "漢字 и кириллица",
    "🙂",
)
"""Texts on which tokenizers of one vocabulary are compared."""


@dataclass
class UnknownTokens:
    """How many tokens of answers are the unknown token: whatever stood there is lost.

    `tokens` of `total` tokens, in `answers` of `texts` answers.
    """

    tokens: int = 0
    total: int = 0
    answers: int = 0
    texts: int = 0

    def add(self, unknown_id: int | None, ids: Sequence[int]) -> None:
        """Counts an answer's tokens, without the end-of-sequence token after them."""
        unknown = 0 if unknown_id is None else list(ids).count(unknown_id)
        self.tokens += unknown
        self.total += len(ids)
        self.answers += unknown > 0
        self.texts += 1

    def as_metrics(self) -> dict[str, int]:
        """The counts under their metric names; none if every token is known."""
        return {f"data/unknown_{name}": count for name, count in vars(self).items() if self.tokens}

    @classmethod
    def of_metrics(cls, metrics: Mapping[str, float]) -> UnknownTokens:
        """The counts from metrics that may lack them."""
        return cls(*(int(metrics.get(f"data/unknown_{name}", 0)) for name in vars(cls())))

    def __str__(self) -> str:
        return (
            f"{self.tokens} of {self.total} tokens ({self.tokens / self.total:.1%}) in "
            f"{self.answers} of {self.texts} answers are unknown to the tokenizer; training and "
            "forces see the unknown token there, not the text. Often these are curly quotes and "
            "dashes: replace them in the data, or take a tokenizer that knows them"
        )


def unknown_tokens(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> UnknownTokens:
    """Counts the unknown tokens of texts."""
    counts = UnknownTokens()
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        counts.add(tokenizer.unk_token_id, ids)
    return counts


def read_otherwise(
    tokenizer: PreTrainedTokenizerBase, folder: str | Path, texts: Sequence[str] = SAMPLES
) -> list[str]:
    """The texts that a tokenizer splits otherwise than the `tokenizer.json` of its folder.

    The model families' own classes, which AutoTokenizer takes, rebuild the tokenizer from its
    vocabulary and merges; what they lose, such as characters that are unknown, is lost silently.
    Empty for a folder without that file.
    """
    from tokenizers import Tokenizer

    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        return []
    own = Tokenizer.from_file(str(file))
    own.no_truncation()
    own.no_padding()
    return [
        text
        for text in texts
        if own.encode(text, add_special_tokens=False).ids
        != tokenizer(text, add_special_tokens=False)["input_ids"]
    ]


def warn_of_unread(tokenizer: PreTrainedTokenizerBase, answers: Iterable[str]) -> None:
    """Warns about answers that a tokenizer from elsewhere does not read as they are written."""
    texts = list(dict.fromkeys(answers))
    if (unknown := unknown_tokens(tokenizer, texts)).tokens:
        log.warning("%s", unknown)
    if otherwise := read_otherwise(tokenizer, getattr(tokenizer, "name_or_path", ""), texts):
        log.warning(
            "%s splits %d of %d answers otherwise than its tokenizer.json; characters that it does "
            "not know may be missing, and numbers differ from a study's, which uses the file: load "
            "it with transformers.PreTrainedTokenizerFast.from_pretrained(%r) for the same ones",
            type(tokenizer).__name__,
            len(otherwise),
            len(texts),
            getattr(tokenizer, "name_or_path", ""),
        )
