"""The forms by family: which settings a person is offered, in which order."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from flows.forms.base import At, Form

Pairs = Literal["dpo", "robust_dpo", "ipo", "slic", "hinge", "simpo", "sppo", "sft_extended"]
Rows = Literal["sft", "sft_extended", "dpo", "robust_dpo", "ipo", "slic", "hinge", "simpo", "sppo"]


class FileForm(Form):
    """Of a flow without a form of its own: a study file and changes."""


class SourceForm(Form):
    """Which model and which rows."""

    model: Annotated[str | None, At("base.source")] = Field(
        None, description="`builtin`, a model folder, or a Hub name."
    )
    data_source: Annotated[Literal["world", "file", "hub"] | None, At("data.source")] = Field(
        None, description="The built-in world, a local file, or a data set of the Hub."
    )
    data_path: Annotated[str | None, At("data.path")] = Field(
        None, description="Of source file: .jsonl, .jsonl.gz or .parquet."
    )
    hub_name: Annotated[str | None, At("data.hub_name")] = Field(
        None, description="Of source hub: owner/name."
    )
    data_format: Annotated[
        Literal["pairs", "hh", "probe_file", "chat", "prompts", "gsm8k"] | None, At("data.format")
    ] = Field(None, description="What the rows of a file or Hub data set are.")


class DataForm(SourceForm):
    """Which model, which rows, and one seed."""

    seed: Annotated[int | None, At("seed")] = Field(None, description="Of everything drawn.")


class SftForm(DataForm):
    """Supervised finetuning."""

    objective_at: ClassVar[str | None] = "sft.objective"
    objective: Annotated[Literal["sft", "sft_extended"] | None, At("sft.objective.name")] = Field(
        None, description="On chosen answers, or on chosen and rejected alike."
    )
    normalise: Annotated[
        Literal["sequence_sum", "token_mean"] | None, At("sft.objective.normalise")
    ] = Field(None, description="Of the likelihood: a sum over an answer's tokens, or a mean.")
    steps: Annotated[int | None, At("sft.steps")] = Field(None, description="Optimizer steps.")
    optimizer: Annotated[Literal["sgd", "adamw", "rmsprop"] | None, At("sft.optimizer.name")] = (
        Field(None, description="torch's optimizer.")
    )
    learning_rate: Annotated[float | None, At("sft.optimizer.learning_rate")] = Field(
        None, description="After the warm-up."
    )
    batch_size: Annotated[int | None, At("sft.batch_size")] = Field(
        None, description="Examples of one optimizer step, all ranks."
    )
    ranks: Annotated[int | None, At("sft.engine.ranks")] = Field(
        None, description="Processes that train together."
    )
    probe_every: Annotated[int | None, At("sft.probe_every")] = Field(
        None, description="Steps between probes; 0: none."
    )


class PreferenceForm(DataForm):
    """Training on pairs of a chosen and a rejected answer, after SFT."""

    objective_at: ClassVar[str | None] = "preference.objective"
    objective: Annotated[Pairs | None, At("preference.objective.name")] = Field(
        None, description="The loss; another than the file's starts from its defaults."
    )
    beta: Annotated[float | None, At("preference.objective.beta")] = Field(
        None, description="Inverse temperature β: dpo, robust_dpo, ipo, hinge, simpo, sppo."
    )
    label_smoothing: Annotated[float | None, At("preference.objective.label_smoothing")] = Field(
        None, description="Share of labels taken to be flipped: dpo, robust_dpo."
    )
    margin: Annotated[float | None, At("preference.objective.margin")] = Field(
        None, description="Margin of the log-probabilities: slic, simpo."
    )
    sft_weight: Annotated[float | None, At("preference.objective.sft_weight")] = Field(
        None, description="Weight of the chosen answer's likelihood: slic."
    )
    steps: Annotated[int | None, At("preference.steps")] = Field(
        None, description="Optimizer steps."
    )
    optimizer: Annotated[
        Literal["sgd", "adamw", "rmsprop"] | None, At("preference.optimizer.name")
    ] = Field(None, description="torch's optimizer.")
    learning_rate: Annotated[float | None, At("preference.optimizer.learning_rate")] = Field(
        None, description="After the warm-up."
    )
    batch_size: Annotated[int | None, At("preference.batch_size")] = Field(
        None, description="Pairs of one optimizer step, all ranks."
    )
    ranks: Annotated[int | None, At("preference.engine.ranks")] = Field(
        None, description="Processes that train together."
    )
    probe_every: Annotated[int | None, At("preference.probe_every")] = Field(
        None, description="Steps between probes; 0: none."
    )
    sft_steps: Annotated[int | None, At("sft.steps")] = Field(
        None, description="Optimizer steps of the SFT before."
    )


class StudyForm(PreferenceForm):
    """SFT, preference training, and the forces that did it."""

    contrasts: Annotated[list[Literal["resampled", "flat_world"]] | None, At("contrasts")] = Field(
        None, description="The same training where squeezing should not show."
    )


class GrpoForm(SourceForm):
    """Training on groups of the model's own answers, arm by arm."""

    objective_at: ClassVar[str | None] = "arms.chosen"
    seeds: Annotated[list[int] | None, At("seeds")] = Field(
        None, description="Each of weights, batches and samples alike."
    )
    objective: Annotated[Literal["grpo", "simko"] | None, At("arms.chosen.name")] = Field(
        None, description="One more arm, `chosen`, beside the file's."
    )
    advantage_rule: Annotated[
        Literal["none", "nthr", "positives_only", "random_tokens"] | None,
        At("arms.chosen.advantage_rule.name"),
    ] = Field(None, description="Of the arm `chosen`: how advantages are rewritten token by token.")
    baseline: Annotated[str | None, At("baseline")] = Field(
        None, description="Arm that the others are compared with."
    )
    steps: Annotated[int | None, At("training.steps")] = Field(None, description="Optimizer steps.")
    learning_rate: Annotated[float | None, At("training.optimizer.learning_rate")] = Field(
        None, description="After the warm-up."
    )
    batch_size: Annotated[int | None, At("training.batch_size")] = Field(
        None, description="Prompts of one optimizer step, all ranks."
    )
    completions: Annotated[int | None, At("training.completions")] = Field(
        None, description="Sampled to each prompt: a group."
    )
    temperature: Annotated[float | None, At("training.temperature")] = Field(
        None, description="Of the sampling."
    )
    max_new_tokens: Annotated[int | None, At("training.max_new_tokens")] = Field(
        None, description="Longest completion."
    )


class ModelForm(Form):
    """A model that is looked at, and rows."""

    study: Annotated[str | None, At("study")] = Field(
        None, description="Study file whose finished steps can be named as results."
    )
    data_result: Annotated[str | None, At("data_result")] = Field(
        None,
        description="Result of a data stage: its step in the study, or MLflow's store.address.",
    )


class ForcesForm(ModelForm):
    """Which token pushes which, at checkpoints."""

    objective_at: ClassVar[str | None] = "analysis.objective"
    objective: Annotated[Rows | None, At("analysis.objective.name")] = Field(
        None, description="Whose force it is; another than the file's starts from its defaults."
    )
    beta: Annotated[float | None, At("analysis.objective.beta")] = Field(
        None, description="Inverse temperature β: dpo, robust_dpo, ipo, hinge, simpo, sppo."
    )
    reference: Annotated[str | None, At("reference")] = Field(
        None, description="Checkpoint of the file that the objective compares with."
    )
    updating: Annotated[Literal["data", "recorded"] | None, At("analysis.updating")] = Field(
        None, description="The first pairs of the data, or the batch of a recorded step."
    )
    learning_rate: Annotated[float | None, At("analysis.learning_rate")] = Field(
        None, description="η of the gradient step on the updating pairs."
    )
    updating_pairs: Annotated[int | None, At("analysis.updating_pairs")] = Field(
        None, description="Pairs that push."
    )
    observed_pairs: Annotated[int | None, At("analysis.observed_pairs")] = Field(
        None, description="Pairs whose answers are pushed."
    )


class AuditForm(ModelForm):
    """What a step on each pair would do, before training."""

    objective_at: ClassVar[str | None] = "audit.objective"
    model_result: Annotated[str | None, At("model.result")] = Field(
        None, description="Result with the model that training will start from."
    )
    trained_result: Annotated[str | None, At("trained.result")] = Field(
        None, description="Result that it led to: which ranking foresaw that?"
    )
    objective: Annotated[Pairs | None, At("audit.objective.name")] = Field(
        None, description="Whose force it is; another than the file's starts from its defaults."
    )
    beta: Annotated[float | None, At("audit.objective.beta")] = Field(
        None, description="Inverse temperature β: dpo, robust_dpo, ipo, hinge, simpo, sppo."
    )
    pairs: Annotated[int | None, At("audit.pairs")] = Field(
        None, description="Training pairs, the first ones."
    )


class ProbesForm(DataForm):
    """The answers that a study watches."""

    pairs: Annotated[int | None, At("probe_set.pairs")] = Field(
        None, description="Pairs of either part that are watched."
    )
    temperature: Annotated[float | None, At("probe_set.temperature")] = Field(
        None, description="Of the untrained policy's own answers."
    )
    max_new_tokens: Annotated[int | None, At("probe_set.max_new_tokens")] = Field(
        None, description="Longest answer of the policy."
    )
    writer: Annotated[str | None, At("probe_set.writer.model")] = Field(
        None, description="Model behind an OpenAI-compatible endpoint that rephrases."
    )


class SweepForm(Form):
    """Many trials of another flow; what is tried stands in the file, under `space`."""

    flow: Annotated[str | None, At("flow")] = Field(None, description="Flow that a trial runs.")
    study: Annotated[str | None, At("study")] = Field(
        None, description="Study file with a trial's settings: deploy/studies/…."
    )
    sampler: Annotated[Literal["grid", "random", "tpe"] | None, At("sampler")] = Field(
        None, description="Every combination, draws, or Optuna's TPE."
    )
    trials: Annotated[int | None, At("trials")] = Field(
        None, description="How many; a grid's default is all of it."
    )
    stage: Annotated[str | None, At("stage")] = Field(
        None, description="Step of the flow whose metric counts."
    )
    metric: Annotated[str | None, At("metric")] = Field(
        None, description="Its name in MLflow; the last value counts."
    )
    direction: Annotated[Literal["maximize", "minimize"] | None, At("direction")] = Field(
        None, description="What is better."
    )
    concurrency: Annotated[int | None, At("concurrency")] = Field(
        None, description="Trials handed to the workers at once."
    )
