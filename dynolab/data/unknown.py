"""What a tokenizer does not know, and where it reads otherwise than its own `tokenizer.json`."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
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

    `tokens` of `total` tokens, in `answers` of `texts` answers. `written`: the characters that
    stood there, and how often; of metrics the most frequent ones.
    """

    tokens: int = 0
    total: int = 0
    answers: int = 0
    texts: int = 0
    written: Counter[str] = field(default_factory=Counter)

    def add(self, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], text: str) -> None:
        """Counts an answer's tokens, without the end-of-sequence token after them."""
        self.total += len(ids)
        self.texts += 1
        unknown = tokenizer.unk_token_id
        if unknown is None or unknown not in ids:
            return
        self.tokens += list(ids).count(unknown)
        self.answers += 1
        if tokenizer.is_fast:
            encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            for token, (start, stop) in zip(
                encoded["input_ids"], encoded["offset_mapping"], strict=True
            ):
                self.written.update(text[start:stop].strip() if token == unknown else "")

    def as_metrics(self) -> dict[str, int]:
        """The counts under their metric names; none if every token is known."""
        if not self.tokens:
            return {}
        counts = {f"data/unknown_{name}": int(getattr(self, name)) for name in COUNTS}
        most = self.written.most_common(NAMED)
        return counts | {f"{CHARACTER}{ord(character):04X}": count for character, count in most}

    @classmethod
    def of_metrics(cls, metrics: Mapping[str, float]) -> UnknownTokens:
        """The counts from metrics that may lack them."""
        tokens, total, answers, texts = (int(metrics.get(f"data/unknown_{n}", 0)) for n in COUNTS)
        written = {
            chr(int(name.removeprefix(CHARACTER), 16)): int(count)
            for name, count in metrics.items()
            if name.startswith(CHARACTER)
        }
        return cls(tokens, total, answers, texts, Counter(written))

    def __str__(self) -> str:
        how = f" ({in_words(self.replacements)})" if self.replacements else ""
        return (
            f"{self.counted}; training and forces see the unknown token there, not the text. "
            f"{self._which} replace them in the data{how}, or take a tokenizer that knows them"
        )

    @property
    def counted(self) -> str:
        """How many tokens are unknown."""
        return (
            f"{self.tokens} of {self.total} tokens ({self.tokens / self.total:.1%}) in "
            f"{self.answers} of {self.texts} answers are unknown to the tokenizer"
        )

    @property
    def replacements(self) -> dict[str, str]:
        """What can be written for the unknown characters, where there is something common."""
        return {
            character: PLAIN[character]
            for character, _ in self.written.most_common()
            if character in PLAIN and PLAIN[character] not in self.written
        }

    @property
    def option(self) -> str:
        """The command line's option that replaces them; empty if nothing common is known."""
        if not self.replacements:
            return ""
        texts = json.dumps(self.replacements, ensure_ascii=False).replace("'", "\\u0027")
        return f"--set 'data.replace={texts}'"

    @property
    def _which(self) -> str:
        if not self.written:
            return "Often these are curly quotes and dashes:"
        most = self.written.most_common(NAMED)
        named = ", ".join(
            f"“{name}” {count}×" if name.isprintable() else f"U+{ord(name):04X} {count}×"
            for name, count in most
        )
        return f"{'Most are' if len(most) == NAMED else 'They are'} {named}:"


PLAIN = {"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "..."}
"""Typographic character → what is commonly written in its place."""

COUNTS = "tokens", "total", "answers", "texts"
"""Fields of `UnknownTokens` that are metrics."""

CHARACTER = "data/unknown_char_"
"""Beginning of the names of characters' metrics, before the code point."""

NAMED = 6
"""Unknown characters that metrics and messages name."""


def in_words(replacements: Mapping[str, str]) -> str:
    """“é by e, – by -”."""
    return ", ".join(f"{character} by {plain}" for character, plain in replacements.items())


def unknown_tokens(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> UnknownTokens:
    """Counts the unknown tokens of texts, and what stands there."""
    counts = UnknownTokens()
    for text in texts:
        counts.add(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"], text)
    return counts


def surely_known(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], bool]:
    """Says of texts, far faster than they are encoded, that no token of theirs is unknown.

    True only for tokenizers that read characters, BPE and Unigram: then a text has at most as many
    tokens as UTF-8 bytes, if it is ASCII, and unknown is a character that is unknown alone.
    """
    from tokenizers.models import BPE, Unigram

    model, unknown = (
        tokenizer.backend_tokenizer.model if tokenizer.is_fast else None,
        tokenizer.unk_token,
    )
    if not isinstance(model, BPE | Unigram):
        return lambda _: False
    if unknown is None:
        return lambda _: True

    @cache
    def known(character: str) -> bool:
        return not unknown_tokens(tokenizer, [character]).tokens

    ascii_known = bytes(filter(lambda byte: known(chr(byte)), range(128)))

    def text_known(text: str) -> bool:
        others = text.encode().translate(None, ascii_known).decode()
        return str(unknown) not in text and all(map(known, set(others)))

    return text_known


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
    user_tokenizer = Tokenizer.from_file(str(file))
    user_tokenizer.no_truncation()
    user_tokenizer.no_padding()
    return [
        text
        for text in texts
        if user_tokenizer.encode(text, add_special_tokens=False).ids
        != tokenizer(text, add_special_tokens=False)["input_ids"]
    ]


def auto_reads_otherwise(source: str, revision: str | None, folder: str | Path) -> int:
    """How many of `SAMPLES` AutoTokenizer splits otherwise than a model's `tokenizer.json`.

    **Arguments:** `source`, `revision`: what AutoTokenizer reads; `folder`: has the file. 0 for a
    model that AutoTokenizer cannot read.
    """
    usual = _usual(source, revision)
    return 0 if usual is None else len(read_otherwise(usual, folder))


def _usual(source: str, revision: str | None = None) -> PreTrainedTokenizerBase | None:
    from transformers import AutoTokenizer

    try:
        usual: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, revision=revision or "main", trust_remote_code=False
        )
    except Exception:  # whatever the library raises: such a model has no usual tokenizer
        return None
    return usual


def end_tokens(tokenizer: PreTrainedTokenizerBase) -> int:
    """How many tokens the end-of-sequence token is where it follows a word, as in answers."""
    end = tokenizer.eos_token or ""
    word, ended = tokenizer(["a", f"a{end}"], add_special_tokens=False)["input_ids"]
    return 1 if not end or ended[-1] == tokenizer.eos_token_id else len(ended) - len(word)


def about_auto(texts: int, folder: str = "the folder `model` of `dynolab path base`") -> str:
    """What it means that AutoTokenizer splits so many of `SAMPLES` otherwise.

    **Arguments:** `folder`: has the tokenizer, in which the end of an answer is one token.
    """
    return (
        f"Only for scripts with TRL: load transformers.PreTrainedTokenizerFast from {folder} "
        f"there, to train on the same tokens as here; AutoTokenizer splits {texts} of "
        f"{len(SAMPLES)} sample texts otherwise than the model's tokenizer.json"
    )


def about_loaders(folder: str) -> str:
    """How a script with TRL loads a folder's tokenizer to train on the tokens of studies.

    Empty where AutoTokenizer reads as studies do.
    """
    from transformers import PreTrainedTokenizerFast

    usual = _usual(folder)
    if usual is None:
        return ""
    texts = len(read_otherwise(usual, folder))
    advised = PreTrainedTokenizerFast.from_pretrained(folder) if texts else usual
    note = about_auto(texts, folder) if texts else ""
    tokens = end_tokens(advised)
    if tokens > 1:
        start = note or "Only for scripts with TRL: load the tokenizer there as usual"
        note = (
            f"{start}; then call tokenizer.add_tokens([AddedToken({advised.eos_token!r}, "
            "special=True, normalized=False)], special_tokens=True), with AddedToken of "
            f"tokenizers: without it the end of an answer is {tokens} tokens"
        )
    return note


def warn_of_unread(tokenizer: PreTrainedTokenizerBase, answers: Iterable[str]) -> None:
    """Warns about answers that a tokenizer from elsewhere does not read as they are written."""
    texts = list(dict.fromkeys(answers))
    if (unknown := unknown_tokens(tokenizer, texts)).tokens:
        log.warning("%s", unknown)
    otherwise = read_otherwise(tokenizer, getattr(tokenizer, "name_or_path", ""), texts)
    if otherwise:
        log.warning(
            "%s splits %d of %d answers otherwise than its tokenizer.json; characters that it does "
            "not know may be missing, and numbers differ from a study's, which uses the file: load "
            "it with transformers.PreTrainedTokenizerFast.from_pretrained(%r) for the same ones",
            type(tokenizer).__name__,
            len(otherwise),
            len(texts),
            getattr(tokenizer, "name_or_path", ""),
        )
