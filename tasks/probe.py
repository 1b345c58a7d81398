"""Stage `probe`: every model's scores of the watched answers, and its greedy answers."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from dynolab.costs.machines import StageCost
from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, ProbeRow, json_line, read_rows
from dynolab.data.world.answer_kinds import RIGHT, WRONG, answer_kind
from dynolab.data.world.lexicon import Fact, answered, statements
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.probes.hallucination import TrainingAnswers
from dynolab.probes.score import score_probes
from dynolab.results.study import Answer, ModelScore, Score
from dynolab.rollouts.generator import SampleConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.costs import AnalysisCopies, Costs, Reads
from tasks.shared.policies import load_model, responses

MODELS = ("base", "sft", "preference")


class ProbeConfig(StageConfig):
    """How many answers each model gives, and in which batches it scores."""

    batch_tokens: int = Field(16_384, ge=1, description="Padded tokens of one forward.")
    answers: int = Field(
        72, ge=1, description="Prompts of each split, from the first, that every model answers."
    )
    answer_tokens: int = Field(24, ge=1, description="Longest answer, in tokens.")


def probe(work: Work[ProbeConfig]) -> dict[str, float]:
    """Reads inputs `data`, `base`, `preference` and, if there was any SFT, `sft`.

    Results: `scores.jsonl`, every probe row's score by every model on every split, and
    `answers.jsonl`, greedy answers to the first prompts. Returns for every model
    `probe/heldout/hallucinated/<model>`, the share of held-out prompts that it answers with
    another training question's answer (`TrainingAnswers` has the rule), and
    `probe/heldout/hallucinated_exactly/<model>`, the share that repeats all of that answer; for
    the built-in world also `probe/<split>/right/<model>` and `probe/<split>/wrong/<model>`, the
    shares of answers with the right value and with another statement.
    """

    data = work.input_folder("data")
    rows = list(read_rows(data / "probes.jsonl", ProbeRow))
    training_answers = TrainingAnswers(read_rows(data / "train.jsonl", Example))
    corpus = data / "corpus.jsonl"  # of the built-in world alone
    sentences = read_rows(corpus, Example) if corpus.exists() else ()
    stated = frozenset(fact for row in sentences for fact in statements(row.chosen))
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
            model_answers = [_judged(answer, training_answers, stated) for answer in model_answers]
            answered.writelines(map(json_line, model_answers))
            shares |= _shares(name, model_answers)
            progress.update(number, name)
    work.tracker.log_metrics(shares, 0)
    return shares | {"seconds": work.seconds, "rows": float(len(rows))}


def _judged(answer: Answer, training_answers: TrainingAnswers, stated: frozenset[Fact]) -> Answer:
    """Adds what the answer has from training answers, and what it says of what is asked."""

    fields: dict[str, object] = {
        "borrowed": training_answers.borrowed(answer.answer, answer.chosen),
        "says": answer_kind(answer.prompt, answer.answer, answered(answer.prompt, answer.chosen)),
    }
    if fields["says"] is not None:
        fields["stated"] = stated.issuperset(statements(answer.chosen))
    if answer.split == "heldout" and (
        source := training_answers.source(answer.answer, answer.chosen, finished=answer.finished)
    ):
        fields |= {"taken_from": source.question, "taken_exactly": source.exact}
    return answer.model_copy(update=fields)


def _shares(model: str, answers: list[Answer]) -> dict[str, float]:
    """The shares that the stage returns of one model's answers."""
    shares: dict[str, float] = {}
    for split in ("train", "heldout"):
        rows = [answer for answer in answers if answer.split == split]
        counts = {}
        if split == "heldout":
            counts["hallucinated"] = sum(answer.taken_from is not None for answer in rows)
            counts["hallucinated_exactly"] = sum(answer.taken_exactly for answer in rows)
        if any(answer.says for answer in rows):
            counts["right"] = sum(answer.says in RIGHT for answer in rows)
            counts["wrong"] = sum(answer.says in WRONG for answer in rows)
        if rows:
            shares |= {f"probe/{split}/{name}/{model}": n / len(rows) for name, n in counts.items()}
    return shares


def _score_and_answer(
    name: str, folder: Path, rows: list[ProbeRow], config: ProbeConfig
) -> tuple[list[Score], list[Answer]]:
    """Scores all rows and answers some prompts greedily, with the model in a folder."""
    from models.language import context_length

    model, tokenizer = load_model(folder)
    encoder = Encoder(tokenizer, context_length(model), "drop")
    scores = score_probes(ResponseLogits(model), rows, encoder, batch_tokens=config.batch_tokens)
    chosen = [row for row in rows if row.kind == "chosen"]
    prompted = [
        row
        for split in ("train", "heldout")
        for row in [row for row in chosen if row.split == split][: config.answers]
    ]
    sampling = SampleConfig(temperature=0, max_new_tokens=config.answer_tokens)
    sampled = responses(model, tokenizer, prompted, sampling)
    return scores, [
        Answer(
            model=name,
            pair_id=row.pair_id,
            split=row.split,
            prompt=row.prompt,
            chosen=row.content(row.response),
            answer=response.text,
            finished=response.finished,
        )
        for row, response in zip(prompted, sampled, strict=True)
    ]


COPIES = AnalysisCopies(host=1, gpu=1, fetched=1)


def estimate(costs: Costs, config: ProbeConfig, reads: Reads) -> StageCost:
    """Every trained model's scores: forwards alone, which take a third."""
    return costs.analysis(
        costs.inputs.probe_rows * len(costs.trainings(reads)) / 3,
        COPIES,
        batch_tokens=config.batch_tokens,
        backward=False,
    )


PROBE = Stage("probe", 5, probe, estimate=estimate)
