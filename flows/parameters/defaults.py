"""Merges settings into the defaults of the classes that they fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dynolab.data.source_checks import OnDisk


def settings_class(annotation: Any, given: Mapping[str, Any]) -> type[BaseModel] | None:
    """The class of the settings that a field may hold, by what is given; None: it holds others."""
    for kind in choices(annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel) and not _is_another(kind, given):
            return kind
    return None


def with_defaults(
    kind: type[BaseModel], content: Mapping[str, Any], defaults: BaseModel | None = None
) -> dict[str, Any]:
    """Settings merged into their defaults: a setting changes what it names, and nothing beside it.

    `preference: {steps: 30}` keeps the other settings that the default of `preference` sets. A
    section whose `name` differs from the default's, such as another objective, starts from its own
    defaults.

    **Arguments:** `defaults`: the settings that they are merged into; by default those of `kind`.
    """
    fields = kind.model_fields
    return {
        name: _completed(default_of(defaults or kind, name), fields[name].annotation, value)
        if name in fields
        else value
        for name, value in content.items()
    }


def default_of(owner: Any, name: str) -> Any:
    """The default of a class's field, or what an object or a dictionary has under the name."""
    if isinstance(owner, type) and issubclass(owner, BaseModel):
        info = owner.model_fields.get(name)
        return info.get_default(call_default_factory=True) if info else None
    return owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)


def with_paths(kind: type[BaseModel], content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Settings in which relative paths (`OnDisk`) start from `folder`."""
    return {
        name: _located(kind.model_fields[name], value, folder)
        if name in kind.model_fields
        else value
        for name, value in content.items()
    }


def choices(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows, without None."""
    if get_origin(annotation) is Annotated:
        yield from choices(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for inner in get_args(annotation):
            yield from choices(inner)
    elif annotation is not NoneType:
        yield annotation


def _completed(default: Any, annotation: Any, given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    if isinstance(default, BaseModel) and not _is_another(type(default), given):
        return {**as_written(default), **with_defaults(type(default), given, default)}
    return _within(annotation, given, with_defaults)


def as_written(value: Any) -> Any:
    """A default as a study file would hold it: what it sets, and what tells its kind."""
    if isinstance(value, BaseModel):
        return {
            name: as_written(getattr(value, name))
            for name, info in type(value).model_fields.items()
            if name in value.model_fields_set or _tag(info) is not None
        }
    if isinstance(value, Mapping):
        return {name: as_written(inner) for name, inner in value.items()}
    return value


def _tag(info: FieldInfo) -> Any:
    """The only value of a field that tells its class from others, such as an objective's name."""
    values = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    return values[0] if len(values) == 1 else None


def _is_another(kind: type[BaseModel], given: Mapping[str, Any]) -> bool:
    """Whether the settings are tagged as those of another class."""
    return any(
        name in given and _tag(info) not in (None, given[name])
        for name, info in kind.model_fields.items()
    )


def _located(info: FieldInfo, value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return _within(
            info.annotation, value, lambda kind, content: with_paths(kind, content, folder)
        )
    if isinstance(value, str) and value != info.default:
        for marker in markers_of(info):
            if isinstance(marker, OnDisk):
                return marker.beside(folder, value)
    return value


def markers_of(info: FieldInfo) -> Iterator[Any]:
    """What is annotated to a field, or to one of the types that it allows."""
    yield from info.metadata
    for kind in get_args(info.annotation):
        if get_origin(kind) is Annotated:
            yield from get_args(kind)[1:]


def _within(annotation: Any, value: dict[str, Any], change: Any) -> dict[str, Any]:
    """Applies `change(class, settings)` to settings, or to every value of a dictionary of them."""
    for kind in choices(annotation):
        if get_origin(kind) is dict:
            inner = get_args(kind)[1]
            return {
                name: _within(inner, entry, change) if isinstance(entry, dict) else entry
                for name, entry in value.items()
            }
    settings = settings_class(annotation, value)
    changed: dict[str, Any] = value if settings is None else change(settings, value)
    return changed
