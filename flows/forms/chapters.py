"""The forms of the chapters beside finetuning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from flows.forms.base import At, Form
from flows.forms.families import ModelForm


class SqueezingForm(ModelForm):
    """Where pushed-down probability goes: of one softmax, and of a language model."""

    seed: Annotated[int | None, At("seed")] = Field(
        None, description="Of random cases, and of the built-in model."
    )
    cases: Annotated[int | None, At("softmax.cases")] = Field(
        None, description="Random cases of every statement on one softmax."
    )
    model_result: Annotated[str | None, At("model.result")] = Field(
        None, description="Result with the language model; empty: the built-in one, trained here."
    )
    model: Annotated[str | None, At("model.model")] = Field(
        None, description="In its place a model folder, or a Hub name."
    )
    data_source: Annotated[Literal["world", "file", "hub"] | None, At("data.source")] = Field(
        None, description="Of the pairs: the built-in world, a local file, or the Hub."
    )
    data_path: Annotated[str | None, At("data.path")] = Field(
        None, description="Of source file: .jsonl, .jsonl.gz or .parquet."
    )
    pairs: Annotated[int | None, At("push.pairs")] = Field(
        None, description="Pairs whose rejected answers are pushed down."
    )
    fall: Annotated[float | None, At("push.fall")] = Field(
        None, description="Nats per token that a pushed answer loses, to first order."
    )


class SimplicityForm(Form):
    """Which mappings of objects to messages a small network learns fast."""

    seeds: Annotated[list[int] | None, At("seeds")] = Field(
        None, description="Of the initial weights."
    )
    width: Annotated[int | None, At("width")] = Field(
        None, description="Units of the network's hidden layer."
    )


class ImageForm(Form):
    """Which labelled images."""

    seeds: Annotated[list[int] | None, At("seeds")] = Field(
        None, description="Of weights, batches and wrong labels."
    )
    data_source: Annotated[Literal["digits", "idx", "hub", "arrays"] | None, At("data.source")] = (
        Field(None, description="Built-in digits, MNIST's files, the Hub, or an .npz file.")
    )
    data_path: Annotated[str | None, At("data.path")] = Field(
        None, description="Of source idx: the folder; of arrays: the .npz file."
    )
    hub_name: Annotated[str | None, At("data.hub_name")] = Field(
        None, description="Of source hub: ylecun/mnist, uoft-cs/cifar10, or alike."
    )
    images: Annotated[int | None, At("data.train")] = Field(None, description="Images to train on.")


class ClassificationForm(ImageForm):
    """How classifiers learn: which class pushes which, and the path of every example."""

    networks: Annotated[
        list[Literal["lenet", "mlp", "transformer", "resnet18"]] | None, At("networks")
    ] = Field(None, description="Whose forces are measured.")
    learning_rate: Annotated[float | None, At("forces.training.learning_rate")] = Field(
        None, description="The one that figures show; must be among the learning rates."
    )
    learning_rates: Annotated[list[float] | None, At("forces.learning_rates")] = Field(
        None, description="Each is trained with, rising."
    )
    noise: Annotated[float | None, At("paths.noise")] = Field(
        None, description="Share of images with a wrong label whose paths are followed."
    )


class SupervisionForm(ImageForm):
    """What to teach when labels are wrong, and which kind of examples is learned faster."""

    noise: Annotated[list[float] | None, At("noise")] = Field(
        None, description="Shares of labels that are flipped to other classes."
    )
    model: Annotated[Literal["lenet", "mlp", "transformer", "resnet18"] | None, At("model")] = (
        Field(None, description="Network of teachers and students.")
    )
    epochs: Annotated[int | None, At("supervision.training.epochs")] = Field(
        None, description="Of teachers and students alike."
    )
    temperature: Annotated[float | None, At("supervision.temperature")] = Field(
        None, description="Of distillation: of the teacher's predictions and the student's."
    )


class TransferForm(ImageForm):
    """How to prepare a task head: some digits, then others; some topics, then others."""

    first_digits: Annotated[list[int] | None, At("first_digits")] = Field(
        None, description="Classes to pretrain on; the others are transferred to."
    )
    taus: Annotated[list[int] | None, At("digits.taus")] = Field(
        None, description="Epochs of head probing on the images, rising."
    )
    examples: Annotated[int | None, At("digits.examples")] = Field(
        None, description="Images of the second task to probe and finetune with."
    )
    texts_path: Annotated[str | None, At("texts.path")] = Field(
        None, description="Texts of your own, with texts.source=file under other settings."
    )
