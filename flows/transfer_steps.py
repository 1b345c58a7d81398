"""Which stages the flow `transfer` has, in which order, and what each reads."""

from __future__ import annotations

import yaml

from flows.transfer_parameters import TransferParameters
from tasks.chapter import ChapterPageConfig
from tasks.images import IMAGES
from tasks.runtime.chain import Step
from tasks.transfer import TRANSFER_DIGITS, TRANSFER_TOPICS, TopicTransferJob, TransferJob
from tasks.transfer_page import TRANSFER_PAGE


def transfer_steps(parameters: TransferParameters) -> list[Step]:
    """Images, transfer between them, transfer between topics, and the page."""
    digits = TransferJob(
        **dict(parameters.digits),
        seeds=parameters.seeds,
        model=parameters.model,
        first=parameters.first_digits,
    )
    measured = [Step("transfer-digits", TRANSFER_DIGITS, digits, {"images": "images"})]
    if parameters.texts is not None:
        topics = TopicTransferJob(
            **dict(parameters.topics),
            seeds=parameters.seeds,
            first=parameters.first_topics,
            texts=parameters.texts,
        )
        measured.append(Step("transfer-topics", TRANSFER_TOPICS, topics))
    page = ChapterPageConfig(
        name=parameters.name,
        settings=yaml.safe_dump(parameters.model_dump(mode="json"), sort_keys=False),
    )
    return [
        Step("images", IMAGES, parameters.data),
        *measured,
        Step("transfer-page", TRANSFER_PAGE, page, {one.name: one.name for one in measured}),
    ]
