"""Writes a result's model as a folder with a card, and pushes it to the Hugging Face Hub."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import yaml
from huggingface_hub import HfApi, ModelCardData, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

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

_PATHS = re.compile(r"(?m)(?<=[:-] )(['\"]?)/.*/(?=[^/\n]+$)")
"""Folders of absolute paths in YAML: they tell of the machine."""

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
) -> None:
    """Writes the last model of a study, or a training's, into a folder, a Hub repository or both.

    **Arguments:** `reference`: the result. `hub`: the repository; a new one is private unless
    `public`.

    **Raises** `ConfigError` for an unknown result, one without a model, a folder that exists, a
    missing login, and what the Hub refuses.
    """
    if hub is None and folder is None:
        raise ConfigError("--hub", None, "give a repository, as me/my-model, or a folder by --to")
    if folder is not None and folder.exists():
        raise ConfigError("--to", str(folder), "exists; name a new folder")
    if hub is not None and get_token() is None:
        raise ConfigError("--hub", hub, "needs a login: hf auth login, or HF_TOKEN")
    model, texts = described(open_store(Settings.from_environment()), reference, hub or str(folder))
    if folder is not None:
        shutil.copytree(model, folder, copy_function=shutil.copyfile)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        announce(f"model   {folder}")
    if hub is not None:
        api = HfApi(library_name="dynolab", library_version=__version__)
        try:
            page = api.create_repo(hub, private=not public, exist_ok=True)
            api.upload_folder(repo_id=hub, folder_path=model)
            for name, text in texts.items():
                api.upload_file(repo_id=hub, path_or_fileobj=text.encode(), path_in_repo=name)
        except (HFValidationError, HfHubHTTPError, httpx2.HTTPError, OSError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError("--hub", hub, f"the Hub does not take it: {reason}") from error
        announce(f"pushed  {page}")


def described(store: Store, reference: str, name: str) -> tuple[Path, dict[str, str]]:
    """The folder of a result's model, and the files that describe it, by name.

    They are `README.md`, the card, and of a study `settings.yaml`. None holds a row of the data.
    Figures are a study's: a training alone has none.
    """
    known, named = results_by_digest(store), existing_result(store, "RESULT", reference)

    def manifest(result: StageResult) -> Manifest:
        return store.manifest(result.address, result.digest)

    def read_by(result: StageResult, name: str) -> StageResult | None:
        return known.get(manifest(result).parents.get(name, ""))

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
    read: Any = manifest(data).config if (data := read_by(trained, "data")) else {}
    objectives = [config["objective"]["name"] for config in configs[1:]]
    base = configs[0].get("source", chain[0].stage)
    on_hub = base not in ("builtin", chain[0].stage) and not Path(base).is_absolute()
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
            base=base if on_hub else Path(base).name,
            objectives=", then ".join(objectives),
            rows=trained.metrics.get("data/rows_kept", 0),
            data=read.get("hub_name") or Path(read.get("path") or read.get("source", "?")).name,
            result=trained.short,
            version=__version__,
            figures=figures,
            settings=_PATHS.sub(r"\1", yaml.safe_dump(configs[-1])),
        )
    }
    if figures:
        texts["settings.yaml"] = _PATHS.sub(r"\1", str(manifest(named).config["settings"]))
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


def _mean(n: int, **ends: float | None) -> str:
    numbers = {end: math.nan if value is None else value for end, value in ends.items()}
    return f"{with_interval(Interval(**numbers, n=n))} ({n})"
