"""Checks a model folder before anything in it is loaded, and lists the files that are read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from dynolab.errors import ConfigError, reading

if TYPE_CHECKING:
    import torch

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_TEMPLATES = "additional_chat_templates"

_SHARDS = ("global_step*", "zero_pp_rank_*", "*_optim_states.pt", "shard-*.safetensors")
"""Files of DeepSpeed's ranks and of a training's resume states: parts of tensors."""

_REMEDIES = {
    "quantization_config": "its weights are quantised, but measurements need exact ones; "
    "give the model before quantisation, or dequantise it and save it",
    "compression_config": "its weights are compressed; decompress the model and save it",
    "transformers_weights": f"names another file; rename it to {WEIGHTS} and remove the setting",
    "fusion_config": "replaces parts of the model; remove the setting",
    "distributed_config": "spreads the model over processes; remove the setting",
}
"""Settings of config.json with which the weights would load as another model, with remedies."""


def check_source(source: str | Path, needed: str, content: str) -> None:
    """Raises `ConfigError` for a folder without file `needed`, and for a path without a folder.

    **Arguments:** `content`: what the file holds, for the message.
    """
    folder = Path(source)
    if folder.is_dir():
        if not (folder / needed).is_file():
            raise ConfigError(
                "model", str(source), f"the folder holds no {content} ({needed}); save it there"
            )
        return
    looks_local = isinstance(source, Path) or str(source).startswith((".", "/", "~"))
    if looks_local or str(source).count("/") > 1:
        raise ConfigError("model", str(source), "no such folder; give a folder or a Hub name")


def adapter_base(source: str | Path, field: str = "model") -> tuple[str, str | None] | None:
    """The model that a folder's adapters belong to, and its revision; None for other sources.

    **Returns:** a folder's path (adapter_config.json may name it from its own folder), or a Hub
    name.

    **Raises:** `ConfigError` for adapters that name no base model, or a folder that is missing.
    """
    folder = Path(source)
    if not (folder / ADAPTER_SETTINGS).is_file():
        return None
    settings = _json_object(folder / ADAPTER_SETTINGS, field)
    named, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    if isinstance(named, str) and named:
        for base in (folder / named, Path(named).expanduser()):
            if base.is_dir() and not (base / ADAPTER_SETTINGS).is_file():
                return str(base), None
        if not named.startswith((".", "/", "~")) and named.count("/") <= 1:
            return named, revision
    raise ConfigError(
        f"{field}.base_model_name_or_path",
        named,
        f"no such base model; set it in {folder / ADAPTER_SETTINGS} to a folder or a Hub name, or "
        "give the merged model",
    )


ADAPTER_SETTINGS = "adapter_config.json"


def check_settings(source: str | Path, settings: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for a config.json that would load another model than the weights hold.

    Code named by `auto_map` is never run: transformers' own class is used.
    """
    for name, remedy in _REMEDIES.items():
        if settings.get(name) is not None:
            raise ConfigError("model", str(source), f"config.json sets {name}: {remedy}")


def loaded_files(folder: Path, field: str = "model") -> list[str]:
    """Paths, relative to a model folder, of all its files that loading can read.

    These are the files at its top level, the shards in its index, and additional chat templates.
    Of adapters, the base model's files are not among them.

    **Raises:** `ConfigError` for a folder that has no weights, holds ranks' shards, or
    refers to files outside it.
    """
    _check_shards(folder, field)
    with reading(field, str(folder), "give a folder that you can read"):
        names = [
            *(file.name for file in folder.iterdir() if file.is_file()),
            *(f"{_TEMPLATES}/{file.name}" for file in folder.glob(f"{_TEMPLATES}/*")),
        ]
    if not any(name.endswith(".safetensors") for name in names) and INDEX not in names:
        raise ConfigError(
            field,
            str(folder),
            "the folder holds no *.safetensors weights; save the model with save_pretrained",
        )
    names += _indexed(folder, field)
    for name in names:
        _check_inside(folder, name, field)
    return sorted(set(names))


def weight_sizes(folder: Path) -> list[int]:
    """How many numbers each tensor of a folder has, from the headers of its weight files.

    **Raises:** `ConfigError` for a damaged file.
    """
    path = folder / WEIGHTS
    files = [path] if path.is_file() else [folder / name for name in _indexed(folder, "model")]
    sizes: list[int] = []
    for file in files:
        with (
            reading("model", str(file), "fetch it again"),
            safe_open(file, framework="pt") as weights,
        ):
            sizes += [math.prod(weights.get_slice(name).get_shape()) for name in weights.keys()]  # noqa: SIM118
    return sizes


def check_counts(folder: Path, settings: Mapping[str, Any], sizes: Sequence[int]) -> None:
    """Raises `ConfigError` for counts of layers, heads … far beyond the weights' sizes.

    Building such a model would never finish.
    """
    tensors, numbers = len(sizes), sum(sizes)
    for name, value in settings.items():
        layers = name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
        most = tensors if layers else max(numbers, _ANY_COUNT)
        if name.startswith(("num_", "n_")) and isinstance(value, int) and value > most:
            raise ConfigError(
                "model",
                str(folder),
                f"config.json sets {name} = {value}, but the weights are {tensors} tensors "
                f"with {numbers} numbers; give the config.json that belongs to them",
            )


def check_size(folder: Path, model: torch.nn.Module, numbers: int) -> None:
    """Raises `ConfigError` for a model of more than twice the numbers that its weights have.

    Transformers allocates and initialises missing weights before it reports them.

    **Arguments:** `model`: the model on the meta device.
    """
    needed = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if needed > 2 * numbers + _ANY_SIZE:
        raise ConfigError(
            "model",
            str(folder),
            f"its config.json makes a model of {needed} numbers, but its weights have "
            f"{numbers}; give the config.json that belongs to them",
        )


_ANY_COUNT, _ANY_SIZE = 2**16, 2**26
"""Counts, and numbers in weights and buffers, that are always allowed: any machine copes."""


def read_settings(folder: Path, field: str = "model") -> dict[str, Any]:
    """The content of a folder's config.json."""
    return _json_object(folder / "config.json", field)


def _indexed(folder: Path, field: str) -> list[str]:
    """The shards in a folder's weight index; empty if transformers would not read the index."""
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return []
    index = _json_object(folder / INDEX, field)
    shards, about = index.get("weight_map"), index.get("metadata")
    if not isinstance(shards, dict) or not shards or not isinstance(about, dict):
        raise ConfigError(
            field, str(folder / INDEX), "must have a weight_map and metadata; save the model again"
        )
    for shard in shards.values():
        if not isinstance(shard, str) or not _is_plain(shard):
            raise ConfigError(
                field,
                str(folder / INDEX),
                f"names the shard {shard!r}, which is outside the folder; put all shards into the "
                "folder, and list their file names in the index",
            )
        if not (folder / shard).is_file():
            raise ConfigError(
                field,
                str(folder / INDEX),
                f"names the shard {shard!r}, which is missing; fetch it again",
            )
    return sorted(set(shards.values()))


def _is_plain(name: str) -> bool:
    path = PurePosixPath(name)
    return not (path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name)


def _check_inside(folder: Path, name: str, field: str) -> None:
    """Raises `ConfigError` for a link out of the folder, whose target could change at any time.

    Allows the links of the Hub's cache, from a snapshot to the blobs beside it.
    """
    with reading(field, str(folder / name), "give a folder that you can read"):
        root, file = folder.resolve(strict=True), (folder / name).resolve(strict=True)
    if not file.is_relative_to(root) and file.parent != root.parent.parent / "blobs":
        raise ConfigError(
            field,
            str(folder / name),
            f"is a link to {file}, outside the folder; copy the file into it",
        )


def _check_shards(folder: Path, field: str) -> None:
    shards = sorted(path.name for pattern in _SHARDS for path in folder.glob(pattern))
    preferred = any(name.startswith("shard-") for name in shards)  # transformers prefers them
    if preferred or (shards and not list(folder.glob("model*.safetensors"))):
        raise ConfigError(
            field,
            str(folder),
            f"the folder holds ranks' shards ({shards[-1]}), not whole weights; give the "
            "training's `model/` folder, or gather the shards (DeepSpeed's zero_to_fp32) and save "
            "a model",
        )


def _json_object(file: Path, field: str) -> dict[str, Any]:
    with reading(field, str(file), "save the model again"):
        content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ConfigError(field, str(file), "must hold a JSON object; save the model again")
    return content
