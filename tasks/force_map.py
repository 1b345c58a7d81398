"""Stage `analysis`: the force map of many observed answers and updating pairs at one checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dynolab import distributed
from dynolab.data.encode import EncodedExample, Encoder
from dynolab.errors import ConfigError
from dynolab.forces import split_step
from dynolab.forces.map.analysis import Question, analyse, analysis_of, recorded_examples
from dynolab.forces.map.excerpts import token_maps
from dynolab.forces.map.force_map import ForceMap
from dynolab.forces.map.job import MapJob
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.objectives import build_objective
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.registry import ObjectiveConfig, RowObjectiveConfig
from dynolab.training.reference import SideLogps, score_reference
from tasks.runtime.launch.launcher import launch_ranks
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.policies import adapter_folder, load_encoder, load_policy
from tasks.shared.replay import recorded_step
from tasks.shared.selection import SelectionConfig, observed_answers, updating_rows

if TYPE_CHECKING:
    from dynolab.training.step_record import Recorded, StepRecord

PARTS = 4  # of the stage's progress
NO_STEP = "set `step` to a recorded step, or set updating: data"


class AnalysisConfig(SelectionConfig):
    """Which answers are observed, which pairs update, and with which step."""

    objective: RowObjectiveConfig = Field(DPOConfig(), description="Loss of the update.")
    pair_ids: tuple[str, ...] = Field(
        (), description="Training pairs that are observed and update, in place of the first ones."
    )
    updating: Literal["data", "recorded"] = Field(
        "data",
        description="data: the first pairs of the data, under `objective`. recorded: the batch of "
        "the recorded step, pairs or groups, under the objective that it was trained with.",
    )
    learning_rate: float = Field(
        1e-2, gt=0, description="η of the gradient step on the updating pairs."
    )
    last_layers: int | None = Field(
        None,
        ge=1,
        description="Only the last so many blocks move, with the final norm and the head; default: "
        "all trained parameters.",
    )
    adapters: bool = Field(
        False,
        description="Only the adapters of a LoRA training move, as they do in a recorded step.",
    )
    token_maps: int = Field(4, ge=0, description="Pairs whose force is mapped token by token.")
    memory_bytes: int | None = Field(
        None,
        ge=2**20,
        description="Memory for factors, besides the model; default: half of what is free.",
    )
    batch_tokens: int = Field(4_096, ge=1, description="Padded tokens of one forward.")
    ranks: int = Field(1, ge=1, description="Processes that share the observed answers.")
    reference_batch: int = Field(8, ge=1, description="Examples of one forward of the reference.")


class AnalysisJob(AnalysisConfig):
    """The force analysis of one checkpoint."""

    step: int | None = Field(
        None,
        ge=0,
        description="A recorded step of the checkpoint: the analysis takes its weights and the "
        "metric of its realised optimizer step (learning rate, clipping, Adam's preconditioner).",
    )


def analyse_forces(work: Work[AnalysisJob]) -> dict[str, float]:
    """Reads inputs `model`, `data`, if the objective needs one, `reference`, and, for a recorded
    step, what the training of `model` read.

    Results: `map/` (the force map as a memory-mapped matrix with its manifest), `totals.jsonl`,
    `terms.jsonl`, `analysis.json`, `token_maps.jsonl`.
    """

    config = work.config
    with work.shown(PARTS) as progress:
        folder = work.output / "map"
        if config.ranks > 1:
            launch = _written_job(work)
            progress.update(1, "force map")
            work.world_size = config.ranks
            launch_ranks(
                "tasks.ranks.force_map",
                launch,
                ranks=config.ranks,
                logs=work.logs,
                environment={},
                while_running=lambda: None,
            )
            question = _question(work)
            answer = analysis_of(question, ForceMap.open(folder))
        else:
            question = _question(work)
            progress.update(1, "force map")
            answer = analyse(question, folder, memory_bytes=config.memory_bytes)
        progress.update(3, "tables")
        (work.output / "analysis.json").write_text(answer.facts.model_dump_json(indent=1))
        maps = token_maps(question, answer.force_map, config.token_maps)
        work.write_tables(totals=answer.totals, terms=answer.terms, token_maps=maps)
        progress.update(PARTS)
    metrics = answer.metrics()
    work.tracker.log_metrics(metrics, config.step or 0)
    work.tracker.log_artifact(work.output / "map" / "manifest.json", "forces")
    work.tracker.log_artifact(work.output / "analysis.json", "forces")
    work.log_tables(totals=answer.totals, blocks=answer.facts.blocks)
    return metrics | {"seconds": work.seconds}


def _written_job(work: Work[AnalysisJob]) -> Path:
    """Writes the job of the map's ranks; its model and tensors are released again."""

    job = MapJob.of(
        _question(work),
        model=work.input_folder("model", "model"),
        adapter=_adapter(work),
        folder=work.output / "map",
        tensors=work.scratch / "update.safetensors",
        memory_bytes=work.config.memory_bytes,
    )
    file = work.scratch / "job.json"
    file.write_text(job.model_dump_json())
    return file


def _question(work: Work[AnalysisJob]) -> Question:
    """The analysis question: policy, observed answers, updating pairs, objective and metric.

    **Raises** `ConfigError` for answers or pairs that cannot be analysed.
    """

    config, data = work.config, work.input_folder("data")
    folder = work.input_folder("model", "model")
    encoder = load_encoder(folder)
    observed = observed_answers(data, config, encoder, config.pair_ids)
    record = None if config.step is None else recorded_step(work, "model", config.step)
    updating, objective = _updating(work, encoder, record)
    policy = load_policy(folder, _adapter(work), copies=1)
    question = Question(
        policy,
        encoder.tokenizer,
        observed,
        updating,
        objective,
        update=config.learning_rate,
        learning_rate=config.learning_rate,
        left_out=encoder.counts.dropped,
        last_layers=config.last_layers,
    )
    if record is None:
        return question
    split = split_step(record, policy, batch_tokens=config.batch_tokens)
    return question.in_metric_of(record, split.update)


def _adapter(work: Work[AnalysisJob]) -> Path | None:
    """The adapters that move: a recorded step's, or with `adapters` those of the trained model."""
    config = work.config
    if config.step is None and not config.adapters:
        return None
    folder = adapter_folder(work, "model")
    if config.adapters and folder is None:
        raise ConfigError(
            "adapters", True, "the checkpoint is no training of adapters; leave it out"
        )
    return folder


def _updating(
    work: Work[AnalysisJob], encoder: Encoder, record: StepRecord | None
) -> tuple[Sequence[Recorded], ObjectiveConfig]:
    """The updating examples and their objective."""

    config = work.config
    if config.updating == "data":
        rows = updating_rows(work.input_folder("data"), config, config.objective, config.pair_ids)
        pairs = encoder.examples(rows)
        needed = build_objective(config.objective).needs_reference
        return recorded_examples(
            pairs, _reference(work, encoder, pairs) if needed else {}
        ), config.objective
    if record is None:
        raise ConfigError("updating", "recorded", NO_STEP)
    return record.examples, record.facts.objective


def _reference(
    work: Work[AnalysisJob], encoder: Encoder, updating: Sequence[EncodedExample]
) -> dict[str, SideLogps]:
    """Log-probabilities of the updating pairs' tokens under the reference."""
    from models.language import load_language_model

    model = load_language_model(
        work.input_folder("reference", "model"),
        tokenizer=encoder.tokenizer,
        device=distributed.device(),
    )
    return score_reference(
        ResponseLogits(model),
        updating,
        build_objective(work.config.objective).sides,
        pad_id=encoder.tokenizer.pad_token_id,
        batch=work.config.reference_batch,
    )


ANALYSIS = Stage(
    "analysis",
    6,
    analyse_forces,
    operational=("memory_bytes", "batch_tokens", "reference_batch", "ranks"),
)
