"""What callbacks share: they never end a training, and read the rows that a trainer trains on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from transformers import TrainerCallback

from dynolab import distributed
from dynolab.data.encode import Encoded
from dynolab.data.rows import Example, ProbeRow, Split
from dynolab.errors import ConfigError

if TYPE_CHECKING:
    from transformers import Trainer


Made = TypeVar("Made")


class Watching(TrainerCallback):
    """A callback that gives up, with one warning, where something fails on any rank."""

    off = ""
    """Why it has given up; empty while it has not."""

    def attempt(self, work: Callable[[], Made]) -> Made | None:
        """Does some work on all ranks; None where it fails on one, and from then on.

        **Arguments:** `work`: exchanges something between ranks only where nothing is expected to
        fail before it does, so that no rank waits for one that has failed.
        """
        if self.off:
            return None
        made, reason = None, ""
        try:
            made = work()
        except Exception as error:  # nobody's training ends by its being watched
            reason = f"{type(error).__name__}: {error}"
        try:
            reason = next(filter(None, distributed.gather(reason)), "")
        except Exception as error:
            reason = reason or f"{type(error).__name__}: {error}"
        if not reason:
            return made
        self.off = reason
        self.give_up()
        if distributed.rank() == 0:
            name = type(self).__name__
            _log.warning("%s is off, and training goes on without it: %s", name, reason)
        return None

    def give_up(self) -> None:
        """Lets go of what was meant for further work."""


_log = logging.getLogger(__name__)

TOGETHER = 64  # rows that are collated at once


@dataclass(frozen=True)
class Answer:
    """One sequence of a row: all its tokens, and which of them are trained as an answer.

    `answer` is None if the row holds none. `kind` is `rejected` for answers labelled as worse.
    """

    row: int
    kind: str
    ids: tuple[int, ...]
    answer: Encoded | None


class TrainedRows:
    """A trainer's dataset, read through its data collator: cut to length as the trainer cuts.

    **Arguments:** `dataset`: the trainer's; one without a length is not read, because reading it
    might leave less for the training.
    """

    def __init__(self, trainer: Trainer, dataset: Any) -> None:
        self._trainer, self._dataset = trainer, dataset
        self._tokenizer: Any = trainer.processing_class
        self._kept = dataset
        if hasattr(dataset, "column_names") and len(self) and trainer.args.remove_unused_columns:
            self._kept = trainer._remove_unused_columns(dataset, description="")

    def __len__(self) -> int:
        return len(self._dataset) if isinstance(self._dataset, Sized) else 0

    def name(self, number: int) -> str:
        """The row's own `id`, if it has one, else its number in the dataset."""
        row = self._dataset[number]
        own = row.get("id") if isinstance(row, Mapping) else None
        return f"row-{number:06d}" if own is None else str(own)

    def answers(self, numbers: Sequence[int] | None = None) -> Iterator[Answer]:
        """The sequences of some rows, by default of all.

        Rows that have a prompt alone, to which the trainer generates answers, give that prompt.
        """
        numbers = range(len(self)) if numbers is None else numbers
        for start in range(0, len(numbers), TOGETHER):
            some = numbers[start : start + TOGETHER]
            rows = [self._kept[number] for number in some]
            rows = [dict(row) if isinstance(row, Mapping) else row for row in rows]
            batch: Any = self._trainer.data_collator(rows)
            if isinstance(batch, Mapping) and "input_ids" in batch:
                yield from _collated(batch, some)
            else:
                for number, row in zip(some, rows, strict=True):
                    yield Answer(number, "prompt", self._prompt(row["prompt"]), None)

    def example(self, number: int) -> Example:
        """A row's texts, of its tokens as they are trained."""
        texts = {"chosen": "", "rejected": None}
        prompt = ""
        for each in self.answers([number]):
            cut = each.answer.prompt_length if each.answer else len(each.ids)
            prompt = self._tokenizer.decode(each.ids[:cut])
            if each.answer is not None:
                kind = each.kind if each.kind in texts else "chosen"
                texts[kind] = self._tokenizer.decode(each.ids[cut:])
        return Example(id=self.name(number), prompt=prompt, **texts)

    def _prompt(self, prompt: Any) -> tuple[int, ...]:
        """A prompt as TRL's generating trainers tokenise it."""
        trainer: Any = self._trainer
        if isinstance(prompt, str):
            return tuple(self._tokenizer(text=[prompt])["input_ids"][0])
        written = self._tokenizer.apply_chat_template(
            conversation=[prompt],
            tools=getattr(trainer, "tools", None) or None,
            chat_template=getattr(trainer, "chat_template", None),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **(getattr(trainer, "chat_template_kwargs", None) or {}),
        )
        return tuple(written["input_ids"][0])


def unwrapped(trainer: Any) -> Any:
    """The trainer's model without what compiles or distributes it."""
    return trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)


def context_of(trainer: Any) -> int:
    """How many tokens the trainer's model reads; for models without a bound more than any row."""
    config = unwrapped(trainer).config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or 2**30)


def check_trainer(trainer: Trainer, what: str, *, sharded: bool = False) -> None:
    """Raises `ConfigError` for a trainer without a tokenizer, or with weights split by FSDP.

    **Arguments:** `sharded`: whether they may be split by FSDP2.
    """
    tokenizer: Any = trainer.processing_class
    if not hasattr(tokenizer, "eos_token_id"):
        kind = type(tokenizer).__name__
        raise ConfigError(
            "trainer.processing_class", kind, "pass the model's tokenizer to the trainer"
        )
    if trainer.is_fsdp_enabled and not (sharded and trainer.accelerator.is_fsdp2):
        remedy = "train with DDP" + (", or set fsdp_version to 2" if sharded else "")
        raise ConfigError("trainer.args.fsdp", True, f"{what} need whole weights; {remedy}")


def watched_answers(trainer: Trainer, pairs: int) -> tuple[list[ProbeRow], list[Encoded]]:
    """The answers of the first rows of `trainer.eval_dataset`, else of the training rows.

    **Arguments:** `pairs`: answers of each kind and dataset.

    **Returns:** rows, one per answer, `split` by where they come from, and their tokens.

    **Raises:** `ConfigError` for datasets without answers.
    """
    held_out: Any = getattr(trainer, "eval_dataset", None)
    datasets: Mapping[str, Any] = held_out if isinstance(held_out, dict) else {"": held_out}
    split: Split = "heldout"
    if not any(isinstance(dataset, Sized) and len(dataset) for dataset in datasets.values()):
        datasets, split = {"": trainer.train_dataset}, "train"
    tokenizer: Any = trainer.processing_class
    watched, sequences = [], []
    for prefix, dataset in datasets.items():
        rows = TrainedRows(trainer, dataset)
        seen: Counter[str] = Counter()
        for each in rows.answers(range(min(8 * pairs, len(rows)))):  # kinds may come in turn
            seen[each.kind] += 1
            if each.answer is None or seen[each.kind] > pairs:
                continue
            cut = each.answer.prompt_length
            row = ProbeRow(
                pair_id=f"{prefix}/{rows.name(each.row)}" if prefix else rows.name(each.row),
                split=split,
                kind=each.kind,
                prompt=tokenizer.decode(each.answer.ids[:cut]),
                response=tokenizer.decode(each.answer.ids[cut:]),
                made_by="trainer",
            )
            watched.append(row)
            sequences.append(each.answer)
    if not watched:
        raise ConfigError(
            "rows",
            None,
            f"{type(trainer).__name__}'s datasets have no answers to watch; give answers "
            "(build_probes, read_rows), such as rows=load_data(file).probes",
        )
    where = "trainer.eval_dataset" if split == "heldout" else "trainer.train_dataset"
    _log.warning("watches answers of the first %d rows of %s", pairs, where)
    return watched, sequences


def _collated(batch: Mapping[str, Any], numbers: Sequence[int]) -> Iterator[Answer]:
    """The sequences of a collated batch; a pair's chosen ones come before the rejected ones."""
    ids = batch["input_ids"]
    pairs = len(ids) == 2 * len(numbers)
    if len(ids) != len(numbers) and not pairs:
        raise ConfigError(
            "trainer.data_collator",
            f"{len(ids)} sequences of {len(numbers)} rows",
            "forces tell sequences apart by their rows; turn off packing and padding_free",
        )
    real = batch.get("attention_mask", torch.ones_like(ids)).bool()
    trained = real
    if "completion_mask" in batch:
        trained = batch["completion_mask"].bool()
    elif "labels" in batch:
        trained = batch["labels"] >= 0
    worse = ~batch["label"].bool().flatten() if "label" in batch else torch.zeros(len(ids))
    for place, row in enumerate(ids):
        own, wanted = row[real[place]].tolist(), trained[place][real[place]].nonzero()[:, 0]
        answer = None
        if len(wanted) and int(wanted[-1]) > 0:
            last = int(wanted[-1]) + 1
            answer = Encoded(tuple(own[:last]), max(1, int(wanted[0])))
        second = pairs and place >= len(numbers)
        kind = "rejected" if second or bool(worse[place]) else "chosen"
        yield Answer(numbers[place % len(numbers)], kind, tuple(own), answer)
