"""Finds committed results by their address, by `<stage>/<beginning of the key>`, or by stage."""

from __future__ import annotations

import re

from dynolab.errors import ConfigError
from dynolab.store.commit import Committed
from dynolab.store.store import Place, Store

_REFERENCE = re.compile(
    r"(stages/)?(?P<stage>[a-z0-9][a-z0-9_-]*)"
    r"(/(?P<key>[0-9a-f]{4,64})(/(?P<attempt>attempt-[0-9a-f]{32}))?)?"
)


def find_result(store: Store, field: str, reference: str) -> tuple[Place, Committed]:
    """Finds the committed result that a reference names.

    **Arguments:** `field`: the setting, for error messages. `reference`: the value of MLflow's tag
    `store.address`; or stage and at least four digits of the key, as the command line shows them;
    or a stage alone, of which the newest result is taken.

    **Raises** `ConfigError` if no committed result, or more than one, matches.
    """
    path = reference.removeprefix(store.files.url + "/").strip("/")
    match = _REFERENCE.fullmatch(path)
    if match is None:
        raise ConfigError(
            field,
            reference,
            f"is not a result of the store {store.files.url}; give MLflow's tag store.address, "
            "or <stage>/<key> as the command line shows it",
        )
    if match["key"] is None:
        return _newest(store, field, match["stage"])
    key = _whole_key(store, field, reference, match["stage"], match["key"])
    place = store.place(match["stage"], key)
    committed = place.committed()
    if committed is None:
        raise ConfigError(
            field, reference, "is not committed yet; first run the stage that computes it"
        )
    if match["attempt"] and not committed.folder.endswith(match["attempt"]):
        raise ConfigError(
            field,
            reference,
            f"was replaced by a later attempt; its result is now {place.address(committed)}",
        )
    return place, committed


def _newest(store: Store, field: str, stage: str) -> tuple[Place, Committed]:
    places = [store.place(stage, key) for key in store.files.children(f"stages/{stage}")]
    results = [(place, result) for place in places if (result := place.committed()) is not None]
    if not results:
        raise _unknown(store, field, stage)
    return max(results, key=lambda pair: pair[1].manifest.created)


def _whole_key(store: Store, field: str, reference: str, stage: str, start: str) -> str:
    keys = [key for key in store.files.children(f"stages/{stage}") if key.startswith(start)]
    if len(keys) > 1:
        raise ConfigError(
            field, reference, f"matches {len(keys)} results; give more digits of the key"
        )
    if not keys:
        raise _unknown(store, field, reference)
    return keys[0]


def _unknown(store: Store, field: str, reference: str) -> ConfigError:
    stages = ", ".join(sorted(store.files.children("stages"))) or "none"
    return ConfigError(
        field, reference, f"is not in the store {store.files.url}, which has results of: {stages}"
    )
