"""Finds committed results by their address or by `<stage>/<beginning of the key>`."""

from __future__ import annotations

import re

from dynolab.errors import ConfigError
from dynolab.store import Store
from tasks.runtime.work import StageResult

_ADDRESS = re.compile(
    r"stages/(?P<stage>[a-z0-9][a-z0-9_-]*)/(?P<key>[0-9a-f]{64})(/(?P<attempt>attempt-[0-9a-f]{32}))?"
)
_SHORT = re.compile(r"(?P<stage>[a-z0-9][a-z0-9_-]*)/(?P<key>[0-9a-f]{4,64})")


def existing_result(store: Store, field: str, reference: str) -> StageResult:
    """The committed result that an address or `<stage>/<key's beginning>` names.

    **Arguments:** `field`: the setting that names it, for messages; `reference`: what MLflow's tag
    `store.address` holds, or stage and at least four digits of the key, as the CLI shows them.

    **Raises** `ConfigError` where no committed result, or more than one, goes by that name.
    """
    path = reference.removeprefix(store.files.url + "/").strip("/")
    match = _ADDRESS.fullmatch(path) or _SHORT.fullmatch(path)
    if match is None:
        raise ConfigError(
            field,
            reference,
            f"is no result of the store {store.files.url}; give MLflow's tag store.address, "
            "or <stage>/<key> as the command line shows them",
        )
    stage, key = match["stage"], _whole_key(store, field, reference, match["stage"], match["key"])
    place = store.place(stage, key)
    committed = place.committed()
    if committed is None:
        raise ConfigError(field, reference, "nothing is committed there; run what makes it first")
    attempt = match.groupdict().get("attempt")
    if attempt and not committed.folder.endswith(attempt):
        raise ConfigError(
            field,
            reference,
            f"was computed again since; its result is now {place.address(committed)}",
        )
    return StageResult.of(place, committed, cached=True)


def _whole_key(store: Store, field: str, reference: str, stage: str, start: str) -> str:
    keys = [key for key in store.files.children(f"stages/{stage}") if key.startswith(start)]
    if len(keys) > 1:
        raise ConfigError(
            field, reference, f"{len(keys)} results begin so; give more digits of the key"
        )
    if not keys:
        there = ", ".join(sorted(store.files.children("stages"))) or "none"
        raise ConfigError(
            field,
            reference,
            f"the store {store.files.url} has no such result; it has results of: {there}",
        )
    return keys[0]
