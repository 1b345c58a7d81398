"""Stage `probe`: what each model of a study thinks of every watched answer, and what it says."""

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
    """How much is asked of each model."""

    batch_tokens: int = Field(16_384, ge=1, description="Padded tokens of one forward.")
    answers: int = Field(4, ge=1, description="Prompts of each split whose answers are shown.")
    heldout_answers: int = Field(
        72,
        ge=0,
        description="Held-out prompts whose answers are searched for those of training questions.",
    )
    answer_tokens: int = Field(24, ge=1, description="Longest answer.")


def probe(work: Work[ProbeConfig]) -> dict[str, float]:
    """Reads inputs `data`, `base`, `sft` and `preference`.

    Results: `scores.jsonl`, every probe row's score by every model on every split, and
    `answers.jsonl`, greedy answers to the first prompts. Returns, of every model,
    `probe/heldout/hallucinated/<model>`: the share of held-out prompts that it answers with
    another training question's answer (`TrainingAnswers` has the rule), and
    `probe/heldout/hallucinated_exactly/<model>`: with all of that answer.
    """
    from dynolab.probes.hallucination import TrainingAnswers

    data = work.input_folder("data")
    rows = list(read_rows(data / "probes.jsonl", ProbeRow))
    known = TrainingAnswers(list(read_rows(data / "train.jsonl", Example)))
    shares: dict[str, float] = {}
    scores, answers = work.output / "scores.jsonl", work.output / "answers.jsonl"
    with (
        work.shown(len(MODELS)) as progress,
        scores.open("w") as scored,
        answers.open("w") as answered,
    ):
        for number, name in enumerate(MODELS, start=1):
            model_scores, spoken = _ask(name, work.input_folder(name, "model"), rows, work.config)
            scored.writelines(
                ModelScore(model=name, **dict(score)).line() for score in model_scores
            )
            spoken = [_with_source(answer, known) for answer in spoken]
            answered.writelines(answer.model_dump_json() + "\n" for answer in spoken)
            if heldout := [answer for answer in spoken if answer.split == "heldout"]:
                taken = sum(answer.taken_from is not None for answer in heldout)
                exactly = sum(answer.taken_exactly for answer in heldout)
                shares[f"probe/heldout/hallucinated/{name}"] = taken / len(heldout)
                shares[f"probe/heldout/hallucinated_exactly/{name}"] = exactly / len(heldout)
            progress.update(number, name)
    work.tracker.log_metrics(shares, 0)
    return shares | {"seconds": work.seconds, "rows": float(len(rows))}


def _with_source(answer: Answer, known: TrainingAnswers) -> Answer:
    """The answer, if to a held-out question, with the training question that it answers."""
    if answer.split != "heldout":
        return answer
    source = known.source(answer.answer, answer.chosen, finished=answer.finished)
    if source is None:
        return answer
    taken = {"taken_from": source.question, "taken_exactly": source.exact}
    return answer.model_copy(update=taken)


def _ask(
    name: str, folder: Path, rows: list[ProbeRow], config: ProbeConfig
) -> tuple[list[Score], list[Answer]]:
    """Scores of all rows and greedy answers to some prompts, by the model in a folder."""
    from dynolab.likelihood.token_logps import ResponseLogits
    from dynolab.probes.score import score_probes
    from dynolab.rollouts.sample import SampleConfig, sample_responses
    from models.language import context_length

    model, tokenizer = load_model(folder)
    encoder = Encoder(tokenizer, context_length(model), "drop")
    scores = score_probes(ResponseLogits(model), rows, encoder, batch_tokens=config.batch_tokens)
    chosen = [row for row in rows if row.kind == "chosen"]
    first = {"train": config.answers, "heldout": max(config.answers, config.heldout_answers)}
    asked = [
        row
        for split, count in first.items()
        for row in [row for row in chosen if row.split == split][:count]
    ]
    sampling = SampleConfig(temperature=0, max_new_tokens=config.answer_tokens)
    responses = sample_responses(model, tokenizer, [row.prompt for row in asked], sampling)
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
        for row, response in zip(asked, responses, strict=True)
    ]
    return scores, answers


PROBE = Stage("probe", 3, probe)
