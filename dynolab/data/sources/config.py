"""Settings of the data that a study uses, and the revision that pins their content."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.chat import NO_WRITER, template_digest
from dynolab.data.source_checks import (
    FilePath,
    FolderOrName,
    check_source,
    dataset_commit,
    file_digest,
    named_file,
    named_path,
    pinned,
)
from dynolab.data.sources.files import REMEDY
from dynolab.data.world.world import AnyWorldConfig, WorldConfig
from dynolab.errors import ConfigError, reading
from dynolab.hub import resolve_commit

SOURCE_NAME = r"^[\w.-]+$"


class RowsConfig(BaseModel):
    """The rows of one source."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: Literal["world", "file", "hub"] = Field(
        default="world", description="The built-in world, a local file, or a data set of the Hub."
    )
    world: AnyWorldConfig = Field(
        default=WorldConfig(),
        description="Settings of source `world`: of facts (the default), of two strategies that "
        "solve prompts, or of sums in several steps.",
    )
    path: FilePath | None = Field(
        default=None,
        description="Source `file`: JSON lines or an array, CSV, Parquet, Arrow (text also as .gz, "
        ".zst), or a folder of `save_to_disk`.",
    )
    hub_name: str | None = Field(default=None, description="Source `hub`: owner/name.")
    hub_folder: str | None = Field(default=None, description="Folder inside the Hub data set.")
    hub_split: str = Field(default="train", description="Split of the Hub data set.")
    format: Literal["pairs", "hh", "unpaired", "probe_file", "chat", "prompts", "gsm8k"] = Field(
        default="pairs",
        description="Format of a file or data set. `pairs` and `chat`: prompts and answers, texts "
        "or messages, in the columns of public data sets. `hh`: raw Anthropic transcripts. "
        "`unpaired`: prompt, completion and label, each row for itself. "
        "`probe_file`: pairs with stored responses of every kind. `prompts`: prompt and optional "
        "answer. `gsm8k`: its question and answer.",
    )
    # Excluded without any, as `replace`.
    columns: dict[str, str] = Field(
        default={},
        exclude_if=lambda names: not names,
        description="Column that is read (prompt, chosen, rejected, messages, …) → its name in the "
        "data.",
    )
    chat: Literal["template", "plain"] = Field(
        default="template",
        description="How messages become text: with the chat template of `chat_model`, or as a "
        "dialogue of Human and Assistant.",
    )
    chat_model: FolderOrName | None = Field(
        default=None,
        description="Folder or Hub name of the model whose chat template writes messages.",
    )
    chat_revision: str | None = Field(
        default=None, description="Hub: branch, tag or commit. Folder: the digest of its template."
    )
    revision: str | None = Field(
        default=None, description="Hub: branch, tag or commit. File: the sha256 of its content."
    )
    # Excluded without any, so that results from before this field keep their keys.
    replace: dict[Annotated[str, Field(min_length=1)], str] = Field(
        default={},
        exclude_if=lambda texts: not texts,
        description="Text of rows → what is read in its place, such as a plain quote for a curly "
        "one that the tokenizer does not know.",
    )
    rows: int | None = Field(default=None, ge=2, description="First rows to use; default: all.")
    heldout_rows: int | None = Field(
        default=None,
        ge=0,
        description="How many of these are drawn, by seed, and never trained on; default: a tenth "
        "of them, at most 100. (The built-in world has a setting of its own.)",
    )
    share: float = Field(
        default=1.0,
        gt=0,
        exclude_if=lambda share: share == 1.0,
        description="Of several sources: this one's part of the training rows, relative to the "
        "others'. What a source has beyond it is left out, drawn by seed.",
    )
    seed: int = Field(default=0, ge=0, description="Seed of the held-out draw and of the probes.")

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        check_source(self, "data", path=("file",), hub_name=("hub",))
        return self

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        if self.chat == "plain" and self.chat_model is not None:
            raise ConfigError(
                "data.chat_model",
                self.chat_model,
                "chat: plain uses no template; unset one of the two",
            )
        if self.format == "chat" and self.chat == "template" and self.chat_model is None:
            raise ConfigError("data.chat_model", None, NO_WRITER)
        return self

    @property
    def states_facts(self) -> bool:
        """Whether the rows are those of the built-in world of facts."""
        return self.source == "world" and self.world.name == "facts"

    @property
    def origin(self) -> str:
        """Short name of the source, for messages."""
        return Path(self.path).name if self.path else self.hub_name or self.source


class DataConfig(RowsConfig):
    """The pairs of a study and the probes made from them."""

    name: str | None = Field(
        default=None,
        pattern=SOURCE_NAME,
        exclude_if=lambda name: name is None,
        description="Name of this source among several; default: main.",
    )
    also: dict[Annotated[str, Field(pattern=SOURCE_NAME)], RowsConfig] = Field(
        default={},
        exclude_if=lambda sources: not sources,
        description="Further sources by name, whose rows are mixed in. The ids of rows begin with "
        "their source's name, and pages sum by source what each did.",
    )
    probe_pairs: int = Field(
        default=100, ge=0, description="How many pairs of each split are probed."
    )
    probes: FilePath | None = Field(
        default=None,
        description="File of a probe set built before (`dynolab probes`) from the same rows and "
        "seed, to use instead of probes made here.",
    )
    probes_revision: str | None = Field(
        default=None, description="The sha256 of that file's content."
    )

    def parts(self) -> dict[str, RowsConfig]:
        """Every source by its name, with the seed of the whole; {} for a single one."""
        if not self.also:
            return {}
        fields = RowsConfig.model_fields
        rows_config = RowsConfig.model_construct(**{name: getattr(self, name) for name in fields})
        return {self.name or "main": rows_config} | {
            name: part.model_copy(update={"seed": self.seed}) for name, part in self.also.items()
        }

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if (self.name or "main") in self.also:
            raise ConfigError(
                "data.also", self.name or "main", "is the first source's name; choose another"
            )
        if self.also and self.format == "probe_file":
            raise ConfigError(
                "data.format", self.format, "holds the probes of one source; leave out `also`"
            )
        return self


Rows = TypeVar("Rows", bound=RowsConfig)

LEFT_OUT = {
    "data/rows_without_common_prompt": "no pair, or no prompt in common",
    "data/heldout_rows_in_training": "held-out rows with a prompt or answer that training has, too",
}
"""Counts of rows that are neither trained on nor held out."""

ODD = {
    "data/duplicate_pairs": "repeat another pair",
    "data/equal_answers": "with two equal answers",
    "data/empty_answers": "with an empty answer",
    "data/empty_prompts": "with an empty prompt",
    "data/answers_without_blank": "whose answers follow their prompts without a blank",
    "data/answers_without_end": "whose answers end without an end of turn",
}
"""Counts of rows that are trained on and teach little, or something else than they seem to."""


def rows_line(counts: Mapping[str, float]) -> str:
    """What became of a source's rows: "200 rows → 180 training, 20 held-out". Empty if unknown."""
    if "data/train_pairs" not in counts:
        return ""
    train, heldout = (int(counts[f"data/{part}_pairs"]) for part in ("train", "heldout"))
    left_out = {reason: int(counts.get(name, 0)) for name, reason in LEFT_OUT.items()}
    rows = train + heldout + sum(left_out.values())
    parts = [
        f"{train} training",
        f"{heldout} held-out",
        *(f"{count} left out ({reason})" for reason, count in left_out.items() if count),
    ]
    odd = [f"{int(counts[name])} {what}" for name, what in ODD.items() if counts.get(name)]
    return f"{rows} rows → {', '.join(parts)}{'; ' if odd else ''}{', '.join(odd)}"


def resolve_data(config: DataConfig) -> DataConfig:
    """Returns the config with the revision of its content.

    That is the commit of a Hub branch, or the sha256 of a file's bytes; a file that does not match
    a given revision raises `ConfigError`. Chat templates and probe sets are pinned the same way.
    """
    if config.probes is not None:
        revision = _content_revision(
            "data.probes_revision", probes_file(config), config.probes_revision
        )
        config = config.model_copy(update={"probes_revision": revision})
    return resolve_rows(config).model_copy(
        update={"also": {name: resolve_rows(part) for name, part in config.also.items()}}
    )


def resolve_rows(config: Rows) -> Rows:
    """Returns the config of one source with the revision of its content."""
    if config.source == "world":
        return config
    if config.chat_model is not None:
        revision = _template_revision(config.chat_model, config.chat_revision)
        config = config.model_copy(update={"chat_revision": revision})
    if config.hub_name is not None:
        revision = dataset_commit("data.hub_name", config.hub_name, config.revision)
    else:
        revision = _content_revision("data.revision", local_file(config), config.revision)
    return config.model_copy(update={"revision": revision})


def local_file(config: RowsConfig) -> Path:
    """The file or folder that a config names; `ConfigError` if it does not exist."""
    path = named_path("data.path", config.path)
    return path if path.is_dir() else named_file("data.path", config.path, REMEDY)


def probes_file(config: DataConfig) -> Path:
    """The built probe set that a config names; `ConfigError` if it does not exist."""
    return named_file("data.probes", config.probes, "name a probes.jsonl of `dynolab probes`")


def _content_revision(field: str, file: Path, expected: str | None) -> str:
    """The sha256 of a file; it must match the expected one if that is set."""
    revision = file_digest(field, file).hex()
    return pinned(
        field, revision, expected, f"{file.name} now has sha256 {revision}; restore the file"
    )


def _template_revision(model: str, revision: str | None) -> str:
    folder = named_path("data.chat_model", model)
    if not folder.is_dir():
        return resolve_commit("model", model, revision or "main", field="data.chat_model")
    with reading("data.chat_model", model, "give a folder that you can read"):
        digest = template_digest(folder)
    return pinned(
        "data.chat_revision",
        digest,
        revision,
        f"the template in {model} now has digest {digest}; restore it",
    )
