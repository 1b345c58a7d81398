"""What a study file leaves unsaid: nested defaults, and the folder that its paths start from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dynolab.data.source_checks import OnDisk


def with_defaults(kind: type[BaseModel], content: Mapping[str, Any]) -> dict[str, Any]:
    """Settings merged into their defaults: a setting changes what it names, and nothing beside it.

    `preference: {steps: 30}` keeps the other settings that the default of `preference` sets. A
    section whose `name` differs from the default's, such as another objective, starts from its own
    defaults.
    """
    return {
        name: _completed(kind.model_fields[name], value) if name in kind.model_fields else value
        for name, value in content.items()
    }


def default_settings(kind: type[BaseModel], path: tuple[str, ...]) -> dict[str, Any]:
    """The settings by name that stand at a dotted path by default; empty if there are none."""
    default: Any = kind
    for name in path:
        if isinstance(default, type) and issubclass(default, BaseModel):
            info = default.model_fields.get(name)
            default = info.get_default(call_default_factory=True) if info else None
        elif isinstance(default, Mapping):
            default = default.get(name)
        else:
            default = getattr(default, name, None)
    written = _written(default) if isinstance(default, Mapping) else {}
    assert isinstance(written, dict)
    return written


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


def _completed(info: FieldInfo, given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    default = info.get_default(call_default_factory=True)
    if isinstance(default, BaseModel) and not _is_another(type(default), given):
        written = _written(default)
        fields = {
            name: FieldInfo(annotation=field.annotation, default=getattr(default, name))
            for name, field in type(default).model_fields.items()
        }
        inner = {
            name: _completed(fields[name], value) if name in fields else value
            for name, value in given.items()
        }
        return {**written, **inner}
    return _within(info.annotation, given, with_defaults)


def _written(value: Any) -> Any:
    """A default as a study file would hold it: what it sets, and what tells its kind."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {
            name: _written(getattr(value, name))
            for name, info in fields.items()
            if name in value.model_fields_set or _tag(info) is not None
        }
    if isinstance(value, Mapping):
        return {name: _written(inner) for name, inner in value.items()}
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
        for marker in _metadata(info):
            if isinstance(marker, OnDisk):
                return marker.beside(folder, value)
    return value


def _metadata(info: FieldInfo) -> Iterator[Any]:
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
        if isinstance(kind, type) and issubclass(kind, BaseModel) and not _is_another(kind, value):
            changed: dict[str, Any] = change(kind, value)
            return changed
    return value
