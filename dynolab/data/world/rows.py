"""What every built-in world consists of: rows to train on and to watch, and their words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynolab.data.rows import Example, ProbeRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PROBED = 40
"""Pairs of each split with probes, in worlds whose probes are built as for any pairs."""


@dataclass(frozen=True)
class WorldRows:
    """A generated world; `corpus` are the rows that its base model is trained on."""

    corpus: list[Example]
    pairs: list[Example]
    heldout: list[Example]
    probes: list[ProbeRow]
    words: list[str]

    def answer_of(self, example: Example) -> str:
        """What responses to an example's prompt are checked against."""
        return example.chosen.strip()

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Word-level tokenizer with pad, bos, eos and unk; prompts get bos."""
        from tokenizers import Tokenizer, models, pre_tokenizers, processors
        from transformers import PreTrainedTokenizerFast

        special = ["<pad>", "<bos>", "<eos>", "<unk>"]
        ids = {word: number for number, word in enumerate([*special, *self.words])}
        words = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        words.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", ids["<bos>"])]
        )
        return PreTrainedTokenizerFast(
            tokenizer_object=words,
            pad_token="<pad>",
            bos_token="<bos>",
            eos_token="<eos>",
            unk_token="<unk>",
            padding_side="right",
        )
