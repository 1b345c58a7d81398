"""Verifies what is in the store, says what is damaged, and removes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dynolab.store.verify import chosen_places, readers_of, remove, verify
from tasks.runtime.open_platform import open_store
from tasks.runtime.system.settings import Settings
from tasks.runtime.work import SHOWN_DIGITS

_FROM_AGAIN = "the command that made it computes it again"


def verify_store(
    references: Sequence[str], announce: Callable[[str], None], *, removes: bool
) -> dict[str, Any]:
    """Reads the results that the references name, or all, and announces what is wrong.

    **Arguments:** `removes`: whether what is damaged is removed, so that it is computed again.

    **Returns** counts, and what was `damaged`, as plain data.
    """
    store = open_store(Settings.from_environment())
    if removes:
        store.check_writable()
    everything, damaged = [], []
    for checked in verify(store, chosen_places(store, references)):
        everything.append(checked)
        removed = remove(store, checked) if removes else []
        for folder, reason in checked.damaged.items():
            name = short(folder)
            announce(f"damaged  {name}: {reason}{'; removed' if folder in removed else ''}")
            damaged.append({"result": name, "reason": reason, "removed": folder in removed})
    for checked in everything:
        if checked.place.path not in checked.damaged:
            continue
        readers = readers_of(everything, {checked.digest} if checked.digest else set())
        further = ", ".join(short(place.path) for place in readers)
        follows = f"; where its bytes then differ, also {further}" if further else ""
        announce(f"again    {short(checked.place.path)}: {_FROM_AGAIN}{follows}")
    digests = {checked.digest for checked in everything}
    orphans = sum(not digests.issuperset(checked.parents.values()) for checked in everything)
    if orphans and not references:
        announce(f"note     {orphans} results were computed from others that are no longer there")
    counts = {
        "results": sum(checked.count for checked in everything),
        "bytes": sum(checked.size for checked in everything),
    }
    announce(
        f"{counts['results']} results and resume states, {counts['bytes'] / 2**20:.1f} MiB: "
        f"{len(damaged)} damaged"
    )
    return {**counts, "damaged": damaged}


def short(folder: str) -> str:
    """A place in the store as people name it: `sft/31c3…`, and the step of a resume state."""
    _, stage, key, *state = folder.split("/")
    return " ".join((f"{stage}/{key[:SHOWN_DIGITS]}", *state[1:]))
