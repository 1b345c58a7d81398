"""What a model's folder must be before anything in it is loaded, and which files are read."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from dynolab.errors import ConfigError, reading

if TYPE_CHECKING:
    import torch

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_TEMPLATES = "additional_chat_templates"

_SHARDS = ("global_step*", "zero_pp_rank_*", "*_optim_states.pt", "shard-*.safetensors")
"""What DeepSpeed's ranks and a training's resume states leave in a folder: parts of tensors."""

_REMEDIES = {
    "quantization_config": "its weights are quantised, and what is measured must be the weights "
    "themselves; give the model before quantisation, or dequantise it and save it",
    "compression_config": "its weights are compressed; decompress the model and save it",
    "transformers_weights": f"names weights of its own; call them {WEIGHTS} and leave it out",
    "fusion_config": "replaces parts of the model; leave it out",
    "distributed_config": "spreads the model over processes; leave it out",
}
"""Settings of config.json that would make another model of the same weights."""


def check_source(source: str | Path, needed: str, what: str) -> None:
    """Refuses a folder without the file that is needed, and a path where there is no folder."""
    folder = Path(source)
    if folder.is_dir():
        if not (folder / needed).is_file():
            raise ConfigError(
                "model", str(source), f"the folder holds no {what} ({needed}); save it there"
            )
        return
    looks_local = isinstance(source, Path) or str(source).startswith((".", "/", "~"))
    if looks_local or str(source).count("/") > 1:
        raise ConfigError("model", str(source), "no such folder; give a folder or a Hub name")


def check_settings(source: str | Path, settings: Mapping[str, Any]) -> None:
    """Refuses what in a model's config.json would load another model than its weights say.

    Code that `auto_map` names is never run: the class of transformers is used.
    """
    for name, remedy in _REMEDIES.items():
        if settings.get(name) is not None:
            raise ConfigError("model", str(source), f"config.json sets {name}: {remedy}")


def read_files(folder: Path, field: str = "model") -> list[str]:
    """Every file of a model's folder that loading can read, by its path in the folder.

    Those are the files directly in it, the shards that its index names, and further chat templates.

    **Raises:** `ConfigError` for a folder without weights, one that holds the ranks' shards of a
    model or adapters, and one of which a file lies elsewhere.
    """
    _check_shards(folder, field)
    with reading(field, str(folder), "give a folder that you can read"):
        names = [file.name for file in folder.iterdir() if file.is_file()]
        names += [f"{_TEMPLATES}/{file.name}" for file in folder.glob(f"{_TEMPLATES}/*")]
    if "adapter_config.json" in names:
        raise ConfigError(
            field,
            str(folder),
            "the folder holds adapters (adapter_config.json), which belong to another model; merge "
            "them into it, and save the whole",
        )
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


@dataclass(frozen=True)
class Held:
    """How many tensors the weights of a folder are, and of how many numbers."""

    tensors: int
    numbers: int


def held_weights(folder: Path) -> Held:
    """What the heads of a folder's weight files promise; `ConfigError` for a damaged one."""
    whole = folder / WEIGHTS
    files = [whole] if whole.is_file() else [folder / name for name in _indexed(folder, "model")]
    sizes: list[int] = []
    for file in files:
        with (
            reading("model", str(file), "fetch it again"),
            safe_open(file, framework="pt") as weights,
        ):
            sizes += [math.prod(weights.get_slice(name).get_shape()) for name in weights.keys()]  # noqa: SIM118
    return Held(len(sizes), sum(sizes))


def check_counts(folder: Path, settings: Mapping[str, Any], held: Held) -> None:
    """Refuses counts that the weights cannot bear: what is built by them would never end."""
    for name, value in settings.items():
        layers = name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
        most = held.tensors if layers else max(held.numbers, _ANY_COUNT)
        if name.startswith(("num_", "n_")) and isinstance(value, int) and value > most:
            raise ConfigError(
                "model",
                str(folder),
                f"config.json says {name} = {value}, and its weights are {held.tensors} tensors "
                f"of {held.numbers} numbers; give the configuration that belongs to them",
            )


def check_size(folder: Path, model: torch.nn.Module, held: Held) -> None:
    """Refuses a model, built without memory, that its weights fill by less than half.

    Transformers makes room for what is missing, and fills it, before it says so.
    """
    needed = sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
    if needed > 2 * held.numbers + _ANY_SIZE:
        raise ConfigError(
            "model",
            str(folder),
            f"its config.json makes a model of {needed} numbers, and its weights are "
            f"{held.numbers}; give the configuration that belongs to them",
        )


_ANY_COUNT, _ANY_SIZE = 2**16, 2**26
"""Counts, and numbers in weights and buffers, that every machine can bear."""


def read_settings(folder: Path, field: str = "model") -> dict[str, Any]:
    """The content of a folder's config.json."""
    return _json_object(folder / "config.json", field)


def _indexed(folder: Path, field: str) -> list[str]:
    """The shards that a folder's index of weights names, where it is read."""
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return []
    index = _json_object(folder / INDEX, field)
    shards, about = index.get("weight_map"), index.get("metadata")
    if not isinstance(shards, dict) or not shards or not isinstance(about, dict):
        raise ConfigError(
            field, str(folder / INDEX), "needs a weight_map and metadata; save the model again"
        )
    for shard in shards.values():
        if not isinstance(shard, str) or not _is_plain(shard):
            raise ConfigError(
                field,
                str(folder / INDEX),
                f"names the shard {shard!r}, which lies elsewhere; put all shards into the folder, "
                "and their names into the index",
            )
        if not (folder / shard).is_file():
            raise ConfigError(
                field, str(folder / INDEX), f"names the shard {shard!r}, which is missing; fetch it"
            )
    return sorted(set(shards.values()))


def _is_plain(name: str) -> bool:
    path = PurePosixPath(name)
    return not (path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name)


def _check_inside(folder: Path, name: str, field: str) -> None:
    """A link out of the folder would be read, and could be turned elsewhere at any time.

    The Hub's cache is made of links: from its snapshots to the blobs beside them.
    """
    with reading(field, str(folder / name), "give a folder that you can read"):
        whole, file = folder.resolve(strict=True), (folder / name).resolve(strict=True)
    blobs = whole.parent.parent / "blobs"
    if not file.is_relative_to(whole) and file.parent != blobs:
        raise ConfigError(
            field, str(folder / name), f"is a link to {file}, out of the folder; copy the file here"
        )


def _check_shards(folder: Path, field: str) -> None:
    shards = sorted(path.name for pattern in _SHARDS for path in folder.glob(pattern))
    read_first = any(name.startswith("shard-") for name in shards)  # transformers prefers them
    if read_first or (shards and not list(folder.glob("model*.safetensors"))):
        raise ConfigError(
            field,
            str(folder),
            f"the folder holds ranks' shards ({shards[-1]}) for whole weights; give the training's "
            "`model/` folder, or gather the shards (DeepSpeed's zero_to_fp32) and save a model",
        )


def _json_object(file: Path, field: str) -> dict[str, Any]:
    with reading(field, str(file), "save the model again"):
        content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ConfigError(field, str(file), "must hold a JSON object; save the model again")
    return content
