"""Which rows of a trainer's dataset the sequences of a step are of."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from accelerate.data_loader import DataLoaderDispatcher
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from dynolab.errors import ConfigError
from dynolab.integrations.trained import Answer, TrainedRows

if TYPE_CHECKING:
    from transformers import Trainer

Sequenced = tuple[tuple[int, ...], int]
"""A sequence's tokens without padding, and the number of those of its prompt; 0: not known."""


class BatchRows:
    """The rows of the batches of the step at hand, while a training runs.

    The numbers are those by which the trainer's loader asks for rows, the tokens those of the very
    batches that it trains on. Nothing is collated again, so that a collator may draw random tokens,
    and rows with the same tokens are told apart.

    Where a loader does not say which rows it asks for (batches that another rank reads, or workers
    out of order), a sequence's row is the first one of the dataset with its tokens; of a stream no
    row is known.
    """

    @classmethod
    def begin(cls, trainer: Trainer, loader: Any) -> BatchRows:
        """Starts to follow the loader of a training, in `on_train_begin`.

        **Arguments:** `loader`: the event's `train_dataloader`.
        """
        # A training that was broken off, or another callback, has left a follower in the method's
        # place; it goes on.
        follower = getattr(trainer.get_batch_samples, "__self__", None)
        rows = follower if isinstance(follower, cls) else cls(trainer)
        rows._follow(loader)
        return rows

    def __init__(self, trainer: Trainer) -> None:
        self.rows = TrainedRows(trainer, trainer.train_dataset)
        """The trainer's dataset; `rows.name(number)` is a row's name."""
        self._trainer: Any = trainer
        # What somebody else has set on the instance, if so; `end` sets it again.
        self._in_place: Any = vars(trainer).get("get_batch_samples")
        self._get = trainer.get_batch_samples
        trainer.get_batch_samples = self._batch_samples  # type: ignore[method-assign]
        # Rows' numbers of the batches that are drawn and not trained on yet; None: not known.
        self._drawn: deque[list[int]] | None = None
        # Of the step at hand: numbers (None: not known) and batch.
        self._batches: list[tuple[list[int] | None, Any]] = []
        self._answers: list[Answer] | None = None
        self._by_ids: dict[int, int] | None = None  # a row by the hash of its tokens
        self._is_asked = False  # the trainer, and nobody else, draws batches
        # Batches that a resumed training passes over, and how many the loader may draw in advance.
        self._skipped = self._ahead = 0

    def end(self) -> None:
        """Stops following; the trainer is as it was."""
        self._batches, self._answers, self._drawn = [], None, None
        trainer = self._trainer
        if trainer.get_batch_samples == self._batch_samples:
            del trainer.get_batch_samples
            if self._in_place is not None:
                trainer.get_batch_samples = self._in_place

    def answers(self) -> list[Answer]:
        """The sequences of the step's batches, in their order; none where rows are not known.

        Prompts to which the trainer generates answers are sequences of kind `prompt`.
        """
        if self._answers is None:
            self._answers = []
            for numbers, batch in self._batches:
                # A collator that makes more or fewer sequences than rows leaves them without one.
                with suppress(ConfigError):
                    self._answers += self.rows.of_batch(batch, numbers or ())
        return self._answers

    def numbers(self, sequences: Sequence[Sequenced]) -> list[int | None]:
        """The row of each sequence of the step's passes, by its tokens or by those of its prompt.

        None for one that is of none of the step's rows.
        """
        if self._batches and all(numbers is not None for numbers, _ in self._batches):
            rows: dict[tuple[int, ...], list[int]] = {}
            for answer in self.answers():
                rows.setdefault(answer.ids, []).append(answer.row)
            return list(_in_turn(sequences, rows))
        # By all rows of the dataset; hashes, as their tokens may not fit into memory.
        if self._by_ids is None:
            self._by_ids = {}
            for answer in self.rows.answers():
                self._by_ids.setdefault(hash(answer.ids), answer.row)
        by_ids = self._by_ids
        return [by_ids.get(hash(ids), by_ids.get(hash(ids[:cut]))) for ids, cut in sequences]

    def _follow(self, loader: Any) -> None:
        """Notes what the loader's sampler draws from now on."""
        base = getattr(loader, "base_dataloader", loader)
        sampler = getattr(base, "batch_sampler", None)
        if isinstance(sampler, _Noted) and sampler.follower is self:
            return
        self._drawn, self._batches, self._answers = None, [], None
        if (
            not isinstance(base, DataLoader)
            or isinstance(loader, DataLoaderDispatcher)
            or isinstance(base.dataset, IterableDataset)
            or sampler is None
            or not getattr(base, "in_order", True)
        ):
            return
        dataset: Any = base.dataset
        if len(dataset) != len(self.rows):  # a trainer's own loader may have other rows
            self.rows = TrainedRows(self._trainer, dataset)
        state, args = self._trainer.state, self._trainer.args
        # A resumed training passes over the batches that it has trained on in its epoch.
        parts = args.gradient_accumulation_steps
        steps_of_epoch = max(-(-len(loader) // parts), 1)
        passed = 0 if args.ignore_data_skip else state.global_step % steps_of_epoch
        self._skipped = passed * parts
        # accelerate takes a batch in advance, and each worker some more.
        self._ahead = 1 + base.num_workers * (base.prefetch_factor or 0)
        # DataLoader refuses another sampler; this one draws the same.
        object.__setattr__(base, "batch_sampler", _Noted(sampler, self))

    def _batch_samples(self, *arguments: Any, **named: Any) -> Any:
        """`Trainer.get_batch_samples`, of which the batches are noted."""
        self._batches, self._answers = [], None
        self._is_asked = True
        try:
            samples = self._get(*arguments, **named)
        finally:
            self._is_asked = False
        for batch in samples[0]:
            numbers = self._drawn.popleft() if self._drawn else None
            # What takes keys from a batch, such as its labels, takes none of these.
            self._batches.append((numbers, dict(batch) if isinstance(batch, Mapping) else batch))
        # More draws are left than the loader takes in advance: some batches were dropped on their
        # way, and which numbers are whose is not known.
        if self._drawn is not None and len(self._drawn) > self._ahead:
            self._batches = [(None, batch) for _, batch in self._batches]
        return samples

    def _note(self) -> tuple[deque[list[int]] | None, int]:
        """Where an iteration of the sampler notes its draws, and how many of them are passed over.

        None for one that is not the training's, such as a callback's look at a batch.
        """
        if not self._is_asked:
            return None, 0
        skipped, self._skipped = self._skipped, 0  # in the first epoch alone
        self._drawn = deque()
        return self._drawn, skipped


class _Noted(BatchSampler):
    """A batch sampler that notes what it draws."""

    def __init__(self, sampler: Any, follower: BatchRows) -> None:
        self.sampler_of_batches, self.follower = sampler, follower

    def __iter__(self) -> Iterator[list[int]]:
        notes, skipped = self.follower._note()
        for number, drawn in enumerate(self.sampler_of_batches):
            if notes is not None and number >= skipped:
                notes.append(list(drawn))
            yield drawn

    def __len__(self) -> int:
        return len(self.sampler_of_batches)

    def __getattr__(self, name: str) -> Any:
        if name == "sampler_of_batches":  # before it is there
            raise AttributeError(name)
        return getattr(self.sampler_of_batches, name)


def _in_turn(
    sequences: Sequence[Sequenced], rows: Mapping[tuple[int, ...], Sequence[int]]
) -> Iterator[int | None]:
    """Each sequence's row; sequences with the same tokens take their rows in turn."""
    turns: Counter[tuple[int, ...]] = Counter()
    for ids, cut in sequences:
        key = ids if ids in rows else ids[:cut]
        if key not in rows:
            yield None
            continue
        yield rows[key][turns[key] % len(rows[key])]
        turns[key] += 1
