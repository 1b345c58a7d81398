"""Reads rows of every shape beside TRL's own data sets: token by token, prompt and completion."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
from trl.trainer.kto_trainer import KTOConfig, KTOTrainer

from dynolab import Encoder
from dynolab.errors import ConfigError
from tests.fidelity.public import read_pairs
from tests.fidelity.row_shapes import CHAT, CONTEXT, TEXT, WHOLE, Rows
from tests.fidelity.tokenizers import CHATS, KINDS, chat_tokenizer, text_tokenizer

LONGEST = 4_096


class Side(NamedTuple):
    """Token ids, and which of them, except the first, the completion holds."""

    ids: tuple[int, ...]
    completion: tuple[bool, ...]


class Outcome(NamedTuple):
    """What became of a shape: `same`, `different`, `refused` (here), or `trl_raises`."""

    tokenizer: str
    shape: str
    what: str
    detail: str = ""


class Oracle:
    """TRL's trainers with one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        self.tokenizer, self.folder = tokenizer, folder
        self.trainers: dict[type, Any] = {}

    def sides(self, rows: Rows, mode: str | None) -> list[list[Side]]:
        """The sequences that TRL trains on, one or two a row; of KTO's rows, two make one."""
        data = datasets.Dataset.from_list(rows)
        if "label" in rows[0]:
            prepared = self._prepared(KTOTrainer, KTOConfig, data)
            sides = [_side(row["prompt_ids"], row["completion_ids"]) for row in prepared]
            return [sides[number : number + 2] for number in range(0, len(sides), 2)]
        if not any("rejected" in row for row in rows):
            prepared = self._prepared(SFTTrainer, SFTConfig, data)
            return [
                [Side(tuple(row["input_ids"]), tuple(label != -100 for label in row["labels"][1:]))]
                for row in prepared
            ]
        prepared = self._prepared(DPOTrainer, DPOConfig, data, mode)
        collator = self.trainers[DPOTrainer].data_collator
        collator.max_length, collator.truncation_mode = (
            (CONTEXT, mode) if mode else (None, "keep_start")
        )
        found = []
        for row in prepared:
            batch = collator([row])
            kept = batch["attention_mask"].bool()
            found.append(
                [
                    Side(tuple(ids[own].tolist()), tuple(mask[own][1:].bool().tolist()))
                    for ids, mask, own in zip(
                        batch["input_ids"], batch["completion_mask"], kept, strict=True
                    )
                ]
            )
        return found

    def _prepared(
        self, trainer: type, config: type, data: datasets.Dataset, mode: str | None = None
    ) -> Any:
        """The rows as a trainer holds them; it is built once, with its first rows."""
        if trainer not in self.trainers:
            # One row of text: what is compared goes through its `_prepare_dataset`.
            first = {
                SFTTrainer: {"prompt": "a", "completion": " b"},
                KTOTrainer: {"prompt": "a", "completion": " b", "label": True},
                DPOTrainer: {"prompt": "a", "chosen": " b", "rejected": " c"},
            }[trainer]
            plain = trainer is SFTTrainer
            self.trainers[trainer] = trainer(
                model=_tiny(len(self.tokenizer)),
                args=config(
                    output_dir=str(self.folder / "trl"),
                    report_to=[],
                    bf16=False,
                    use_cpu=True,
                    max_length=None,
                    **({"completion_only_loss": True} if plain else {}),
                ),
                train_dataset=datasets.Dataset.from_list([first] * 2),
                processing_class=self.tokenizer,
                **({} if plain else {"ref_model": _tiny(len(self.tokenizer))}),
            )
        made = self.trainers[trainer]
        made.args.max_length = CONTEXT if mode else None
        if mode:
            made.args.truncation_mode = mode
        packing = (False, None) if trainer is SFTTrainer else ()
        return made._prepare_dataset(data, self.tokenizer, made.args, *packing, "train")


def _tiny(vocabulary: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
        )
    )


def _side(prompt: Sequence[int], completion: Sequence[int]) -> Side:
    held = [False] * len(prompt) + [True] * len(completion)
    return Side((*prompt, *completion), tuple(held[1:]))


def ours(
    rows: Rows, tokenizer: PreTrainedTokenizerBase, mode: str | None, folder: Path
) -> list[list[Side]]:
    """The sequences of the rows of a file, as `load_data` and `Encoder` read them."""
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoder = Encoder(tokenizer, CONTEXT if mode else LONGEST, mode or "error")  # type: ignore[arg-type]
    encoded = [encoder.example(row) for row in read_pairs(file, tokenizer)]
    return [
        [
            _side(side.ids[: side.prompt_length], side.ids[side.prompt_length :])
            for side in (row.chosen, row.rejected)
            if side is not None
        ]
        for row in encoded
        if row is not None
    ]


def compare(name: str, oracle: Oracle, shape: str, rows: Rows) -> Outcome:
    """One shape with one tokenizer; its rows come twice, as training needs two of them."""
    mode = next((mode for mode in ("keep_start", "keep_end") if shape.startswith(mode)), None)
    fault = ""
    try:
        expected = oracle.sides(rows * 2, mode)
    except Exception as error:
        expected, fault = [], f"{type(error).__name__}: {error}"[:120]
    try:
        found = ours(rows * 2, oracle.tokenizer, mode, oracle.folder)
    except ConfigError as error:
        return Outcome(name, shape, "refused", f"{error}"[:200] + f" [TRL: {fault or 'reads it'}]")
    except Exception as error:
        return Outcome(name, shape, "different", f"{type(error).__name__}: {error}"[:200])
    if fault:
        return Outcome(name, shape, "trl_raises", fault)
    if shape.startswith(WHOLE):
        expected, found = (
            [[side._replace(completion=()) for side in row] for row in rows]
            for rows in (expected, found)
        )
    if expected == found:
        return Outcome(name, shape, "same")
    return Outcome(name, shape, "different", _difference(oracle.tokenizer, expected, found))


def _difference(
    tokenizer: PreTrainedTokenizerBase, expected: list[list[Side]], found: list[list[Side]]
) -> str:
    """Of the first sides that differ, how many tokens are the completion's, and the ends."""
    theirs, own = ([side for row in rows for side in row] for rows in (expected, found))
    if len(theirs) != len(own):
        return f"TRL has {len(theirs)} sides, here {len(own)}"
    first = next(both for both in zip(theirs, own, strict=True) if both[0] != both[1])
    shown = [
        f"({sum(side.completion)} of {len(side.ids)}) {tokenizer.decode(list(side.ids))[-90:]!r}"
        for side in first
    ]
    return f"TRL {shown[0]} here {shown[1]}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars and warnings of `datasets`, transformers and TRL."""
    datasets.disable_progress_bars()
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)
        datasets.enable_progress_bars()


def outcomes(
    chats: Iterable[str] = CHATS, kinds: Iterable[str] = KINDS, shapes: Iterable[str] = ()
) -> list[Outcome]:
    """Every template with every chat shape, every kind of tokenizer with every text shape."""
    wanted, found = set(shapes), list[Outcome]()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as home, quiet():
        folder = Path(home)
        for names, make, every in ((chats, chat_tokenizer, CHAT), (kinds, text_tokenizer, TEXT)):
            for name in names:
                oracle = Oracle(make(name, folder), folder)
                found += [
                    compare(name, oracle, shape, rows)
                    for shape, rows in every.items()
                    if not wanted or shape in wanted
                ]
    return found


def measure(_: Path) -> dict[str, int]:
    """Counts of the outcomes; what is not the same is printed to stderr."""
    found = outcomes()
    for outcome in found:
        if outcome.what != "same":
            print(*outcome, sep="\t", file=sys.stderr)
    counts = Counter(outcome.what for outcome in found)
    return {
        "template_shapes": len(CHATS),
        "row_shapes": len(CHAT) + len(TEXT),
        "rows_compared": len(found),
        "tokens_silently_different": counts["different"],
        "refused_clearly": counts["refused"],
        "trl_raises": counts["trl_raises"],
    }
