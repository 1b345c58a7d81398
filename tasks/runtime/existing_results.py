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
    """Find the committed result with this address or `<stage>/<beginning of the key>`.

    **Arguments:** `field`: the setting, for error messages. `reference`: the value of MLflow's tag
    `store.address`, or stage and at least four digits of the key, as the CLI shows them.

    **Raises** `ConfigError` if no committed result, or more than one, matches.
    """
    path = reference.removeprefix(store.files.url + "/").strip("/")
    match = _ADDRESS.fullmatch(path) or _SHORT.fullmatch(path)
    if match is None:
        raise ConfigError(
            field,
            reference,
            f"is not a result of the store {store.files.url}; give MLflow's tag store.address, "
            "or <stage>/<key> as the command line shows it",
        )
    stage, key = match["stage"], _whole_key(store, field, reference, match["stage"], match["key"])
    place = store.place(stage, key)
    committed = place.committed()
    if committed is None:
        raise ConfigError(
            field, reference, "is not committed yet; first run the stage that computes it"
        )
    attempt = match.groupdict().get("attempt")
    if attempt and not committed.folder.endswith(attempt):
        raise ConfigError(
            field,
            reference,
            f"was replaced by a later attempt; its result is now {place.address(committed)}",
        )
    return StageResult.of(place, committed, cached=True)


def _whole_key(store: Store, field: str, reference: str, stage: str, start: str) -> str:
    keys = [key for key in store.files.children(f"stages/{stage}") if key.startswith(start)]
    if len(keys) > 1:
        raise ConfigError(
            field, reference, f"matches {len(keys)} results; give more digits of the key"
        )
    if not keys:
        stages = ", ".join(sorted(store.files.children("stages"))) or "none"
        raise ConfigError(
            field,
            reference,
            f"is not in the store {store.files.url}, which has results of: {stages}",
        )
    return keys[0]
