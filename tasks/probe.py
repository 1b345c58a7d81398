"""Stage `probe`: what each model of a study thinks of every watched answer, and what it says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work

if TYPE_CHECKING:
    from dynolab.data.results import Answer, Score
    from dynolab.data.rows import ProbeRow

MODELS = ("base", "sft", "preference")


class ProbeConfig(BaseModel):
    """How much is asked of each model."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    batch_tokens: int = Field(16_384, ge=1, description="Padded tokens of one forward.")
    answers: int = Field(4, ge=1, description="Prompts of each split that are answered greedily.")
    answer_tokens: int = Field(24, ge=1, description="Longest answer.")


def probe(work: Work[ProbeConfig]) -> dict[str, float]:
    """Reads inputs `data`, `base`, `sft` and `preference`.

    Results: `scores.jsonl`, every probe row's score by every model on every split, and
    `answers.jsonl`, greedy answers to the first prompts.
    """
    from dynolab.data.results import ModelScore
    from dynolab.data.rows import ProbeRow, read_rows

    began = time.monotonic()
    rows = list(read_rows(work.input_folder("data") / "probes.jsonl", ProbeRow))
    scores, answers = work.output / "scores.jsonl", work.output / "answers.jsonl"
    with work.shown(len(MODELS)) as progress, scores.open("w") as scored, answers.open("w") as said:
        for number, name in enumerate(MODELS, start=1):
            found, spoken = _ask(name, work.input_folder(name, "model"), rows, work.config)
            scored.writelines(ModelScore(model=name, **dict(score)).line() for score in found)
            said.writelines(answer.model_dump_json() + "\n" for answer in spoken)
            progress.update(number, name)
    return {"seconds": time.monotonic() - began, "rows": float(len(rows))}


def _ask(
    name: str, folder: Path, rows: list[ProbeRow], config: ProbeConfig
) -> tuple[list[Score], list[Answer]]:
    """Scores of all rows and greedy answers to some prompts, by the model in a folder."""
    from dynolab.data.encode import Encoder
    from dynolab.data.results import Answer
    from dynolab.distributed import device
    from dynolab.likelihood import ResponseLogits
    from dynolab.probes.score import score_probes
    from dynolab.rollouts.sample import SampleConfig, sample_responses
    from models.language import context_length, load_language_model, load_tokenizer

    tokenizer = load_tokenizer(folder)
    model = load_language_model(folder, device=device())
    encoder = Encoder(tokenizer, context_length(model), "drop")
    scores = score_probes(ResponseLogits(model), rows, encoder, batch_tokens=config.batch_tokens)
    chosen = [row for row in rows if row.kind == "chosen"]
    asked = [
        row
        for split in ("train", "heldout")
        for row in [row for row in chosen if row.split == split][: config.answers]
    ]
    sampling = SampleConfig(temperature=0, max_new_tokens=config.answer_tokens)
    said = sample_responses(model, tokenizer, [row.prompt for row in asked], sampling)
    answers = [
        Answer(model=name, pair_id=row.pair_id, split=row.split, prompt=row.prompt,
               chosen=row.response, answer=one.text, finished=one.finished)
        for row, one in zip(asked, said, strict=True)
    ]  # fmt: skip
    return scores, answers


PROBE = Stage("probe", 2, probe)
