"""Writes a result's model as a folder with a card, and pushes it to the Hugging Face Hub.

What is published is shown first. It tells no folder of this machine: `without_folders` is the one
rule for all texts.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import yaml
from huggingface_hub import CommitOperationAdd, HfApi, ModelCardData, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

from dynolab import __version__
from dynolab.errors import ConfigError
from dynolab.report.page import ANSWER
from dynolab.report.style import with_interval
from dynolab.statistics import Interval
from dynolab.store import Manifest, Store
from flows.flow import existing_result, results_by_digest
from tasks.runtime.open_platform import open_store
from tasks.runtime.system.settings import Settings
from tasks.runtime.work import StageResult

ON_DISK = {
    **dict.fromkeys(
        ("behaviour", "mitigation", "path", "probes", "ranking", "reproduction", "study")
    ),
    "chat_model": "chat_revision",
    "model": "revision",
    "source": "revision",
}
"""Settings that name a file or a folder, also a relative one → the setting beside it that is a
commit where it names a model of the Hub."""

_PATH = re.compile(r"file:/|~[\w.-]*/|\.{1,2}[/\\]|[/\\]+[\w.-]+[/\\]|[A-Za-z]:\\")
_COMMIT = re.compile("[0-9a-f]{40}")

_CARD = """\
---
{metadata}
---

# {name}

`{base}`, trained by {objectives} on {rows:.0f} rows of `{data}`: result `{result}` of Dynolab
{version}.
{figures}
## Settings of the last training

```yaml
{settings}```
"""
_FIGURES = """
## What the training did

{answer}

| claim | shown | means with 95 % intervals, over pairs |
|---|---|---|
{rows}

## How to reproduce it

`dynolab study settings.yaml` runs the whole study; files of its machine have their names alone.
"""


def push(
    reference: str,
    hub: str | None,
    folder: Path | None,
    announce: Callable[[str], None],
    *,
    public: bool,
    agreed: Callable[[str], bool],
) -> None:
    """Writes the last model of a study, or a training's, into a folder, a Hub repository or both.

    **Arguments:** `reference`: the result. `hub`: the repository; a new one is private unless
    `public`, and a public one needs it. `agreed`: asks whether to publish what was announced.

    **Raises** `ConfigError` for an unknown result, one without a model, a folder that exists, a
    missing login, a public repository without `public`, and what the Hub refuses.
    """
    if hub is None and folder is None:
        raise ConfigError("--hub", None, "give a repository, as me/my-model, or a folder by --to")
    if folder is not None and folder.exists():
        raise ConfigError("--to", str(folder), "exists; name a new folder")
    if hub is not None and get_token() is None:
        raise ConfigError("--hub", hub, "needs a login: hf auth login, or HF_TOKEN")
    name = hub or (folder or Path()).resolve().name
    model, texts = described(open_store(Settings.from_environment()), reference, name)
    if folder is not None:
        shutil.copytree(model, folder, copy_function=shutil.copyfile)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        announce(f"model   {folder}")
    if hub is not None:
        api = HfApi(library_name="dynolab", library_version=__version__)
        try:
            who = readers(api, hub, public=public)
            files = sorted(path for path in model.rglob("*") if path.is_file())
            size = sum(path.stat().st_size for path in files) / 2**20
            for file, text in texts.items():
                announce(f"--- {file}\n{text}")
            announce(f"--- {len(files)} files of the model, {size:.1f} MiB")
            if not agreed(f"Publish this as {hub}, which {who} can read?"):
                return
            page = api.create_repo(hub, private=not public, exist_ok=True)
            contents: dict[str, Path | bytes] = {
                path.relative_to(model).as_posix(): path for path in files
            }
            contents |= {file: text.encode() for file, text in texts.items()}
            # One commit: no reader sees a model without its card.
            added = [CommitOperationAdd(name, content) for name, content in contents.items()]
            api.create_commit(hub, added, commit_message=f"{reference} of Dynolab {__version__}")
        except (HFValidationError, HfHubHTTPError, httpx2.HTTPError, OSError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError("--hub", hub, f"the Hub does not take it: {reason}") from error
        announce(f"pushed  {page}")


def readers(api: HfApi, hub: str, *, public: bool) -> str:
    """Who can read a repository once it is pushed to, in words.

    **Raises** `ConfigError` for an existing public one without `public`.
    """
    try:
        private = api.repo_info(hub).private
    except RepositoryNotFoundError:
        private = not public
    if not private and not public:
        raise ConfigError(
            "--hub", hub, "is public: everybody can read what is pushed there; add --public"
        )
    return "you and those you let" if private else "everybody"


def without_folders(value: Any, *, is_path: bool = False) -> Any:
    """Settings without folders of this machine: each path becomes its last name.

    **Arguments:** `is_path`: whether a text is a path whatever it looks like.
    """
    if isinstance(value, Mapping):
        document = {}
        for name, inner in value.items():
            commit = str(value.get(ON_DISK.get(name) or ""))
            on_hub = _COMMIT.fullmatch(commit) is not None
            document[name] = without_folders(inner, is_path=name in ON_DISK and not on_hub)
        return document
    if isinstance(value, list | tuple):
        return [without_folders(inner, is_path=is_path) for inner in value]
    if isinstance(value, str) and (is_path or _PATH.match(value)):
        return re.split(r"[/\\]", value.rstrip("/\\"))[-1].lstrip("~")
    return value


def described(store: Store, reference: str, name: str) -> tuple[Path, dict[str, str]]:
    """The folder of a result's model, and the files that describe it, by name.

    They are `README.md`, the card, and of a study `settings.yaml`. None holds a row of the data.
    Figures are a study's: a training alone has none.
    """
    by_digest, named = results_by_digest(store), existing_result(store, "RESULT", reference)

    def manifest(result: StageResult) -> Manifest:
        return store.manifest(result.address, result.digest)

    def read_by(result: StageResult, name: str) -> StageResult | None:
        return by_digest.get(manifest(result).parents.get(name, ""))

    trained, figures = named, ""
    if named.stage == "report":
        last = "preference" if "preference" in manifest(named).parents else "sft"
        trained = read_by(named, last) or named
        figures = _figures(store.folder(named.address, named.digest))
    if not {"model/config.json"} & manifest(trained).files.keys() or not read_by(trained, "model"):
        raise ConfigError(
            "RESULT", reference, "has no trained model; name a study, report/<key>, or a training"
        )
    chain = [trained]
    while (start := read_by(chain[0], "model")) is not None:
        chain.insert(0, start)
    configs: list[Any] = [manifest(result).config for result in chain]
    data = read_by(trained, "data")
    read: Any = without_folders(manifest(data).config if data else {})
    objectives = [config["objective"]["name"] for config in configs[1:]]
    first: Any = without_folders(configs[0])
    base = first.get("source", chain[0].stage)
    on_hub = bool(_COMMIT.fullmatch(first.get("revision") or ""))
    metadata = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=base if on_hub else None,
        datasets=read.get("hub_name"),
        tags=["dynolab", *objectives],
    )
    texts = {
        "README.md": _CARD.format(
            metadata=metadata.to_yaml(),
            name=name,
            base=base,
            objectives=", then ".join(objectives),
            rows=trained.metrics.get("data/rows_kept", 0),
            data=read.get("hub_name") or read.get("path") or read.get("source", "?"),
            result=trained.short,
            version=__version__,
            figures=figures,
            settings=yaml.safe_dump(without_folders(configs[-1])),
        )
    }
    if figures:
        settings = without_folders(yaml.safe_load(str(manifest(named).config["settings"])))
        texts["settings.yaml"] = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    return store.folder(trained.address, trained.digest, "model"), texts


def _figures(page: Path) -> str:
    """What a study found, in Markdown; its first sentence without the table of prompts below it."""
    summary = json.loads((page / "summary.json").read_text(encoding="utf-8"))
    return _FIGURES.format(
        answer=(page / ANSWER).read_text(encoding="utf-8").partition("\n\n")[0],
        rows="\n".join(
            f"| {row['id'].partition('/')[0]}: {row['claim']} | {row['outcome']} | "
            + "; ".join(f"{name} {_mean(**value)}" for name, value in row["measured"].items())
            + " |"
            for row in summary["verdicts"]
        ),
    )


def _mean(n: int, pairs: int | None = None, **ends: float | None) -> str:
    numbers = {end: math.nan if value is None else value for end, value in ends.items()}
    return f"{with_interval(Interval(**numbers, n=n, pairs=pairs))} ({n})"
