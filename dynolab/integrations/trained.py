"""What callbacks share: they never end a training, and read the rows that a trainer trains on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import TrainerCallback

from dynolab import distributed
from dynolab.data.encode import Encoded
from dynolab.data.rows import Example, ProbeRow, Split
from dynolab.errors import ConfigError
from dynolab.integrations.random_states import undisturbed

if TYPE_CHECKING:
    from transformers import Trainer


Made = TypeVar("Made")
"""What a piece of work gives."""


class Watching(TrainerCallback):
    """A callback that gives up, with one warning, where something fails on any rank."""

    off = ""
    """Why it has given up; empty while it has not."""

    def attempt(self, work: Callable[[], Made]) -> Made | None:
        """Does some work on all ranks; None where it fails on one, and from then on.

        Random states are afterwards as they were before.

        **Arguments:** `work`: where it exchanges something between ranks, nothing before that is
        expected to fail, so that no rank waits for one that has failed.
        """
        if self.off:
            return None
        result, reason = None, ""
        try:
            with undisturbed():
                result = work()
        except Exception as error:  # nobody's training ends by its being watched
            reason = f"{type(error).__name__}: {error}"
        try:
            reason = next(filter(None, distributed.gather(reason)), "")
        except Exception as error:
            reason = reason or f"{type(error).__name__}: {error}"
        if not reason:
            return result
        self.off = reason
        self.give_up()
        if distributed.rank() == 0:
            name = type(self).__name__
            _log.warning("%s is off, and training goes on without it: %s", name, reason)
        return None

    def give_up(self) -> None:
        """Lets go of what was meant for further work."""


_log = logging.getLogger(__name__)

_say_once = cache(_log.warning)

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

    Reading leaves random states, and those that collator and dataset hold, as they were.

    **Arguments:** `dataset`: the trainer's; one without a length is not read, because reading it
    might leave less for the training.
    """

    def __init__(self, trainer: Trainer, dataset: Any) -> None:
        self._trainer, self._dataset = trainer, dataset
        self._tokenizer: Any = trainer.processing_class
        self._read, self._collate = dataset, trainer.data_collator
        self._ids: list[Any] | None = None
        self._repeated: set[str] | None = None
        # As the trainer does: the collator does not see columns that the model does not read. They
        # are taken from a `datasets.Dataset` itself, and from other datasets row by row.
        if hasattr(dataset, "column_names"):
            if len(self) and trainer.args.remove_unused_columns:
                self._read = trainer._remove_unused_columns(dataset, description="")
        else:
            self._collate = trainer._get_collator_with_removed_columns(self._collate)

    def __len__(self) -> int:
        return len(self._dataset) if isinstance(self._dataset, Sized) else 0

    def name(self, number: int) -> str:
        """The row's `id`, if it has one, else its number in the dataset (`row-000012`).

        An id that several rows have is followed by the row's number.
        """
        by_number = f"row-{number:06d}"
        if self._repeated is None:
            self._repeated = self._read_ids()
        if self._ids is not None:
            name = self._ids[number]
        else:
            with undisturbed(self._dataset):
                row = self._dataset[number]
            name = row.get("id") if isinstance(row, Mapping) else None
        if name is None:
            return by_number
        # Where ids were not read in advance, any of them may repeat.
        unique = self._ids is not None and str(name) not in self._repeated
        return str(name) if unique else f"{name} ({by_number})"

    def _read_ids(self) -> set[str]:
        """Reads the ids of all rows, where that runs no code of the user's; those that repeat."""
        columns = getattr(self._dataset, "column_names", None)
        if columns is not None:
            stored = self._dataset.with_format(None) if "id" in columns else None
            self._ids = [None] * len(self) if stored is None else list(stored["id"])
        elif isinstance(self._dataset, list | tuple):
            rows = self._dataset
            self._ids = [row.get("id") if isinstance(row, Mapping) else None for row in rows]
        counts = Counter(str(name) for name in self._ids or () if name is not None)
        repeated = {name for name, count in counts.items() if count > 1}
        if repeated:
            first = next(name for name in counts if name in repeated)
            _say_once(
                "%d ids of the trainer's dataset repeat (%r is that of %d rows): their rows' "
                "names end with the row's number",
                len(repeated),
                first,
                counts[first],
            )
        return repeated

    def answers(self, numbers: Sequence[int] | None = None) -> Iterator[Answer]:
        """The sequences of some rows, by default of all.

        Rows that have a prompt alone, to which the trainer generates answers, give that prompt.
        Several texts that are packed into a row are a sequence each.
        """
        numbers = range(len(self)) if numbers is None else numbers
        for start in range(0, len(numbers), TOGETHER):
            yield from self._answers(numbers[start : start + TOGETHER])

    def _answers(self, numbers: Sequence[int]) -> list[Answer]:
        with undisturbed(self._trainer.data_collator, self._dataset):
            rows = [self._read[number] for number in numbers]
            rows = [dict(row) if isinstance(row, Mapping) else row for row in rows]
            batch: Any = self._collate(rows)
        if isinstance(batch, Mapping) and len(numbers) > 1 and is_flattened(batch):
            # One row then holds all; which sequence is of which row shows where each is alone.
            return list(chain.from_iterable(self._answers([number]) for number in numbers))
        return list(self.of_batch(batch, numbers))

    def of_batch(self, batch: Any, numbers: Sequence[int]) -> Iterator[Answer]:
        """The sequences of a batch as the trainer's collator gives it.

        **Arguments:** `numbers`: of its rows.

        **Raises:** `ConfigError` for a batch of neither a sequence nor a pair a row.
        """
        if isinstance(batch, Mapping) and not batch.keys().isdisjoint(TOKENS):
            yield from _collated(batch, numbers)
        else:
            for number, row in zip(numbers, batch, strict=True):
                yield Answer(number, "prompt", self._prompt(row["prompt"]), None)

    def example(self, number: int, answers: Iterable[Answer] = ()) -> Example:
        """A row's texts, of its tokens as they are trained.

        **Arguments:** `answers`: the row's sequences, where they are there; else it is read.
        """
        texts = {"chosen": "", "rejected": None}
        prompt = ""
        for sequence in list(answers) or self.answers([number]):
            answer = sequence.answer
            # Without an answer all of it is the prompt.
            cut = answer.prompt_length if answer else len(sequence.ids)
            prompt = self._tokenizer.decode(sequence.ids[:cut])
            if answer is not None:
                kind = sequence.kind if sequence.kind in texts else "chosen"
                texts[kind] = text_of(answer, self._tokenizer)
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
    """Raises `ConfigError` for a trainer of no causal language model, or with no tokenizer.

    Also for one with weights split by FSDP.

    **Arguments:** `sharded`: whether they may be split by FSDP2.
    """
    model: Any = unwrapped(trainer)
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None or getattr(model.config, "is_encoder_decoder", False):
        raise ConfigError(
            "trainer.model",
            type(model).__name__,
            f"{what} are of log-probabilities that a causal language model gives to answers; "
            "give a trainer of one (AutoModelForCausalLM)",
        )
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
        parts: Counter[tuple[str, str]] = Counter()
        for sequence in rows.answers(range(min(8 * pairs, len(rows)))):  # kinds may come in turn
            answer, kind = sequence.answer, sequence.kind
            if answer is None or seen[kind] == pairs:
                continue
            seen[kind] += 1
            name = rows.name(sequence.row)
            parts[name, kind] += 1
            if parts[name, kind] > 1:  # texts that are packed into one row
                name = f"{name} text {parts[name, kind]}"
            row = ProbeRow(
                pair_id=f"{prefix}/{name}" if prefix else name,
                split=split,
                kind=kind,
                prompt=tokenizer.decode(answer.ids[: answer.prompt_length]),
                response=text_of(answer, tokenizer),
                made_by="trainer",
            )
            watched.append(row)
            sequences.append(answer)
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


TOKENS = ("input_ids", "chosen_input_ids")
"""Keys of tokens in a batch; the second one is that of TRL's CPO and ORPO trainers."""


def is_flattened(batch: Mapping[str, Any]) -> bool:
    """Whether a batch holds all its sequences in one row, without padding."""
    if "input_ids" not in batch or "position_ids" not in batch or len(batch["input_ids"]) > 1:
        return False
    return bool(torch.as_tensor(batch.get("attention_mask", 1)).all())


def _collated(batch: Mapping[str, Any], numbers: Sequence[int]) -> Iterator[Answer]:
    """The sequences of a collated batch; a pair's chosen ones come before the rejected ones."""
    rows = list(_sequences(batch))
    packed = len(numbers) == 1 and is_flattened(batch)
    pairs = len(rows) == 2 * len(numbers) and not packed
    if len(rows) != len(numbers) and not (pairs or packed):
        raise ConfigError(
            "trainer.data_collator",
            f"{len(rows)} sequences of {len(numbers)} rows",
            "sequences are told apart by their rows; turn off packing and padding_free",
        )
    # A text has its own label in KTO's rows, in place of a pair's order.
    labelled = "completion_mask" in batch and len(batch.get("label", ())) == len(rows)
    for place, (ids, trained) in enumerate(rows):
        worse = pairs and place >= len(numbers)
        if labelled:
            worse = not batch["label"][place]
        kind = "rejected" if worse else "chosen"
        yield Answer(numbers[place % len(numbers)], kind, ids, _answer(ids, trained))


def _sequences(batch: Mapping[str, Any]) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Every sequence's tokens without padding, and the places of those that are trained."""
    if "input_ids" not in batch:
        for side in ("chosen_", "rejected_"):
            keys = [key for key in batch if key.startswith(side)]
            yield from _sequences({key.removeprefix(side): batch[key] for key in keys})
        return
    ids: Int[Tensor, "rows length"] = torch.as_tensor(batch["input_ids"])
    # Trained are the tokens with labels, else those of the completion mask, else all but padding.
    real = trained = torch.ones_like(ids, dtype=torch.bool)
    if torch.is_tensor(mask := batch.get("attention_mask")) and mask.shape == ids.shape:
        real = trained = mask.bool()
    if "labels" in batch:
        labels = torch.as_tensor(batch["labels"])
        trained = labels >= 0
        if bool((trained & (labels != ids)).any()):  # the loss scores other tokens than these
            trained = torch.zeros_like(trained)
    elif "completion_mask" in batch:
        trained = torch.as_tensor(batch["completion_mask"]).bool()
    parts = list(zip(ids, real, trained, strict=True))
    if is_flattened(batch):  # sequences begin where positions do
        starts = (torch.as_tensor(batch["position_ids"])[0] == 0).nonzero()[:, 0].tolist()
        spans = [slice(*ends) for ends in pairwise([*starts, ids.shape[1]])]
        parts = [(ids[0, span], real[0, span], trained[0, span]) for span in spans]
    for row, is_real, is_trained in parts:
        yield tuple(row[is_real].tolist()), is_trained[is_real].nonzero()[:, 0].tolist()


def _answer(ids: tuple[int, ...], trained: list[int]) -> Encoded | None:
    """The trained tokens of a sequence; its first token, which nothing predicts, is none."""
    places = [place for place in trained if place > 0]
    if not places:
        return None
    first, last = places[0], places[-1]
    has_gaps = len(places) < last + 1 - first
    return Encoded(ids[: last + 1], first, tuple(places) if has_gaps else ())


def text_of(answer: Encoded, tokenizer: Any) -> str:
    """The trained tokens as a text, with an ellipsis where tokens between them are not trained."""
    places = answer.positions
    # Where a place is followed by another than the next one, a span ends.
    ends = [n for n, (here, other) in enumerate(pairwise(places), 1) if other > here + 1]
    spans = [places[start:stop] for start, stop in pairwise([0, *ends, len(places)])]
    return " … ".join(tokenizer.decode([answer.ids[place] for place in span]) for span in spans)
