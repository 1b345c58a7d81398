"""Stage `probe`: every model's scores of the watched answers, and its greedy answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, ProbeRow, read_rows
from dynolab.results.study import Answer, ModelScore, Score
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.policies import load_model

if TYPE_CHECKING:
    from dynolab.probes.hallucination import TrainingAnswers

MODELS = ("base", "sft", "preference")


class ProbeConfig(StageConfig):
    """How many answers each model gives, and in which batches it scores."""

    batch_tokens: int = Field(16_384, ge=1, description="Padded tokens of one forward.")
    answers: int = Field(4, ge=1, description="Prompts of each split whose answers pages show.")
    heldout_answers: int = Field(
        72,
        ge=0,
        description="Held-out prompts whose answers are compared with those of training questions.",
    )
    answer_tokens: int = Field(24, ge=1, description="Longest answer, in tokens.")


def probe(work: Work[ProbeConfig]) -> dict[str, float]:
    """Reads inputs `data`, `base`, `preference` and, if there was any SFT, `sft`.

    Results: `scores.jsonl`, every probe row's score by every model on every split, and
    `answers.jsonl`, greedy answers to the first prompts. Returns for every model
    `probe/heldout/hallucinated/<model>`, the share of held-out prompts that it answers with
    another training question's answer (`TrainingAnswers` has the rule), and
    `probe/heldout/hallucinated_exactly/<model>`, the share that repeats all of that answer.
    """
    from dynolab.probes.hallucination import TrainingAnswers

    data = work.input_folder("data")
    rows = list(read_rows(data / "probes.jsonl", ProbeRow))
    training_answers = TrainingAnswers(list(read_rows(data / "train.jsonl", Example)))
    shares: dict[str, float] = {}
    models = [name for name in MODELS if name in work.inputs]
    scores, answers = work.output / "scores.jsonl", work.output / "answers.jsonl"
    with (
        work.shown(len(models)) as progress,
        scores.open("w") as scored,
        answers.open("w") as answered,
    ):
        for number, name in enumerate(models, start=1):
            folder = work.input_folder(name, "model")
            model_scores, model_answers = _score_and_answer(name, folder, rows, work.config)
            scored.writelines(
                ModelScore(model=name, **dict(score)).line() for score in model_scores
            )
            model_answers = [_with_source(answer, training_answers) for answer in model_answers]
            answered.writelines(answer.model_dump_json() + "\n" for answer in model_answers)
            if heldout := [answer for answer in model_answers if answer.split == "heldout"]:
                taken = sum(answer.taken_from is not None for answer in heldout)
                exactly = sum(answer.taken_exactly for answer in heldout)
                shares[f"probe/heldout/hallucinated/{name}"] = taken / len(heldout)
                shares[f"probe/heldout/hallucinated_exactly/{name}"] = exactly / len(heldout)
            progress.update(number, name)
    work.tracker.log_metrics(shares, 0)
    return shares | {"seconds": work.seconds, "rows": float(len(rows))}


def _with_source(answer: Answer, training_answers: TrainingAnswers) -> Answer:
    """Adds the training question whose answer this is; leaves training prompts' answers alone."""
    if answer.split != "heldout":
        return answer
    source = training_answers.source(answer.answer, answer.chosen, finished=answer.finished)
    if source is None:
        return answer
    source_fields = {"taken_from": source.question, "taken_exactly": source.exact}
    return answer.model_copy(update=source_fields)


def _score_and_answer(
    name: str, folder: Path, rows: list[ProbeRow], config: ProbeConfig
) -> tuple[list[Score], list[Answer]]:
    """Scores all rows and answers some prompts greedily, with the model in a folder."""
    from dynolab.likelihood.token_logps import ResponseLogits
    from dynolab.probes.score import score_probes
    from dynolab.rollouts.sample import SampleConfig, sample_responses
    from models.language import context_length

    model, tokenizer = load_model(folder)
    encoder = Encoder(tokenizer, context_length(model), "drop")
    scores = score_probes(ResponseLogits(model), rows, encoder, batch_tokens=config.batch_tokens)
    chosen = [row for row in rows if row.kind == "chosen"]
    first = {"train": config.answers, "heldout": max(config.answers, config.heldout_answers)}
    prompted = [
        row
        for split, count in first.items()
        for row in [row for row in chosen if row.split == split][:count]
    ]
    sampling = SampleConfig(temperature=0, max_new_tokens=config.answer_tokens)
    responses = sample_responses(model, tokenizer, [row.prompt for row in prompted], sampling)
    answers = [
        Answer(
            model=name,
            pair_id=row.pair_id,
            split=row.split,
            prompt=row.prompt,
            chosen=row.response,
            answer=response.text,
            finished=response.finished,
        )
        for row, response in zip(prompted, responses, strict=True)
    ]
    return scores, answers


PROBE = Stage("probe", 3, probe)
