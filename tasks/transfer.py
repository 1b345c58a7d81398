"""Stages on transfer: pretraining on one task, finetuning on another after preparing the head."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from dynolab.chapters.classifiers.seeds import Seeds
from dynolab.chapters.transfer.rows import TransferRow
from dynolab.chapters.transfer.topics import TopicConfig
from dynolab.chapters.transfer.transfer import TransferConfig
from models.vision import ClassifierName
from tasks.images import IMAGES_FILE
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work

if TYPE_CHECKING:
    from dynolab.chapters.transfer.task import TransferTask


class TransferJob(TransferConfig):
    """All strategies, τ and seeds on one pair of tasks."""

    seeds: Seeds = (0,)
    model: ClassifierName = "mlp"
    first: tuple[int, ...] = Field((0, 1, 2, 3, 4), description="Classes of the first task.")


class TopicTransferJob(TransferJob):
    """Transfer between topics."""

    texts: TopicConfig = TopicConfig()


def transfer_digits(work: Work[TransferJob]) -> dict[str, float]:
    """Reads input `images`. Results: `transfer.jsonl`.

    Returns mean accuracies as `<task>/<strategy>/tau_<τ>/accuracy`.
    """
    from dynolab.chapters.images.images import read_images
    from dynolab.chapters.transfer.task import image_task

    data = read_images(work.input_folder("images") / IMAGES_FILE)
    return _transfer(work, image_task(data, work.config.first, seed=0))


def transfer_topics(work: Work[TopicTransferJob]) -> dict[str, float]:
    """Reads no inputs. Results and metrics are those of `transfer_digits`."""
    from dynolab.chapters.transfer.task import topic_task

    return _transfer(work, topic_task(work.config.texts, work.config.first))


def _transfer(work: Work[Any], task: TransferTask) -> dict[str, float]:
    from dynolab.chapters.transfer.transfer import compare_heads
    from models.vision import build_classifier

    config = work.config
    with work.shown():
        rows = compare_heads(partial(build_classifier, config.model), task, config, config.seeds)
        work.write_tables(transfer=rows)
    work.log_tables(transfer=rows)
    return work.log_metrics(_accuracies(rows))


def _accuracies(rows: list[TransferRow]) -> dict[str, float]:
    accuracies: dict[str, list[float]] = {}
    for row in rows:
        name = f"{row.task}/{row.strategy}/tau_{row.tau}/accuracy"
        accuracies.setdefault(name, []).append(row.accuracy)
    return {name: float(np.mean(values)) for name, values in accuracies.items()}


TRANSFER_DIGITS = Stage("transfer-digits", 2, transfer_digits)
TRANSFER_TOPICS = Stage("transfer-topics", 2, transfer_topics)
