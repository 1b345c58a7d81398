"""Stage `answers`: one sampled answer of a policy to each prompt, for the judges."""

from __future__ import annotations

from itertools import islice

from pydantic import Field

from dynolab.data.rows import PromptRow, Split, read_rows
from dynolab.errors import ConfigError
from dynolab.results.judges import PolicyAnswer
from dynolab.rollouts.generator import SampleConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.policies import load_model, responses


class AnswersConfig(StageConfig):
    """Which prompts are answered, and how."""

    split: Split = "heldout"
    prompts: int | None = Field(None, ge=1, description="How many, from the first; default: all.")
    sampling: SampleConfig = SampleConfig()


def answer_prompts(work: Work[AnswersConfig]) -> dict[str, float]:
    """Reads inputs `prompts` and `model`.

    Results: `answers.jsonl`, one answer to each prompt. Policies with the same seed sample with the
    same random numbers, so that less of the difference between their answers is chance.

    **Raises** `ConfigError` for a split without prompts.
    """
    config = work.config
    file = work.input_folder("prompts") / f"{config.split}.jsonl"
    prompts = list(islice(read_rows(file, PromptRow), config.prompts))
    if not prompts:
        raise ConfigError(
            "answers.split",
            config.split,
            "the data have no such prompts; set data.heldout_rows, or choose the other split",
        )
    with work.shown():
        model, tokenizer = load_model(work.input_folder("model", "model"))
        sampled = responses(model, tokenizer, prompts, config.sampling)
        rows = [
            PolicyAnswer(
                id=row.id,
                split=config.split,
                prompt=row.prompt,
                turn=row.turn,
                truth=row.answer,
                answer=response.text,
                finished=response.finished,
                tokens=len(response.response),
            )
            for row, response in zip(prompts, sampled, strict=True)
        ]
        work.write_tables(answers=rows)
    work.log_tables(answers=rows)
    return {
        "answers/finished": sum(row.finished for row in rows) / len(rows),
        "answers/tokens": sum(row.tokens for row in rows) / len(rows),
        "answers/distinct": len({row.answer for row in rows}) / len(rows),
        "seconds": work.seconds,
    }


ANSWERS = Stage("answers", 2, answer_prompts)
