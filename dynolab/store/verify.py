"""Reads what a store holds and says what is no longer as it was committed.

Readers verify what they read. This reads everything, so that damage is known before it is met, and
can be removed alone: what is removed counts as never computed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from dynolab.errors import ConfigError, StoreError, unreadable
from dynolab.store.commit import Committed, NotSigned, read_committed
from dynolab.store.filesystem import Files
from dynolab.store.manifest import MANIFEST, MARKER, hash_file
from dynolab.store.store import Place, Store


@dataclass
class Checked:
    """What is stored under one key, and what is wrong with it."""

    place: Place
    damaged: dict[str, str] = field(default_factory=dict)
    """Folder of the result, or of a resume state → what is wrong with it."""

    unsigned: set[str] = field(default_factory=set)
    """Those of the damaged folders that another key may have signed: they are never removed."""

    count: int = 0
    """Results and resume states that were read."""

    size: int = 0
    """Bytes of their files."""

    digest: str | None = None
    """Content digest of the result, if its manifest can be read."""

    parents: Mapping[str, str] = field(default_factory=dict)
    """The result's inputs by name: their content digests."""


def chosen_places(store: Store, references: Sequence[str]) -> list[Place]:
    """The places that the references name, as `<stage>` or `<stage>/<key's first digits>`; without
    any, all. **Raises** `ConfigError` for a reference that names none."""
    places = []
    for stage in sorted(store.files.children("stages")):
        for key in sorted(store.files.children(f"stages/{stage}")):
            with suppress(ValueError):  # the name of something else that lies there
                places.append(store.place(stage, key))
    if not references:
        return places
    chosen = []
    for reference in references:
        stage, _, start = reference.strip("/").partition("/")
        named = [place for place in places if place.stage == stage and place.key.startswith(start)]
        if not named:
            raise ConfigError("RESULT", reference, f"is not in the store {store.files.url}")
        chosen += named
    return chosen


def verify(store: Store, places: Sequence[Place]) -> Iterator[Checked]:
    """Reads the results and resume states of places, one place after the other."""
    files = store.files
    for place in places:
        checked = Checked(place)
        states = sorted(files.children(f"{place.path}/resume"))
        for folder in (place.path, *(f"{place.path}/resume/{state}" for state in states)):
            if MARKER not in files.children(folder):  # a killed writer's: it counts as nothing
                continue
            checked.count += 1
            signer = None if folder == place.path else store.signer
            try:
                committed = read_committed(files, folder, place.stage, place.key, signer)
                checked.size += sum(committed.manifest.sizes.values())
                if folder == place.path:
                    checked.digest = committed.manifest.digest
                    checked.parents = committed.manifest.parents
                wrong = _changed(files, committed)
                if wrong:
                    checked.damaged[folder] = wrong
            except NotSigned as error:
                checked.damaged[folder] = str(error)
                checked.unsigned.add(folder)
            except (ValueError, FileNotFoundError, StoreError) as error:
                if type(error) is StoreError and not _is_failing_disk(error):
                    raise  # a store that cannot be reached is not damaged
                checked.damaged[folder] = unreadable(error)
        yield checked


def remove(store: Store, checked: Checked) -> list[str]:
    """Removes what is damaged under one key; returns the folders that count as nothing now.

    The marker goes first, so that nothing half-deleted counts. Attempts that another process may
    be writing stay.
    """
    files, removed = store.files, []
    for folder in checked.damaged.keys() - checked.unsigned:
        names = files.children(folder)
        files.remove(f"{folder}/{MARKER}")
        if "CLAIM" not in names:
            for name in names:
                if name.startswith("attempt-"):
                    files.remove_folder(f"{folder}/{name}")
        removed.append(folder)
    return removed


def readers_of(checked: Sequence[Checked], digests: set[str]) -> list[Place]:
    """The places whose results were computed from results with these digests, also by way of
    others, in the order of `checked`."""
    reachable, grown = set[str](), set(digests)
    while grown != reachable:
        reachable = set(grown)
        for file in checked:
            if file.digest is not None and reachable & set(file.parents.values()):
                grown.add(file.digest)
    return [file.place for file in checked if file.digest in reachable - digests]


def _changed(files: Files, committed: Committed) -> str:
    """What of a committed folder is not as its manifest lists it; empty if all is."""
    folder, listed = committed.folder, committed.manifest.files
    extra = files.sizes(folder).keys() - listed.keys() - {MANIFEST}
    if extra:
        return f"{min(extra)} was not committed with it"
    with TemporaryDirectory() as scratch:
        for path, entry in listed.items():
            file = files.local(f"{folder}/{path}")
            try:
                if file is None:
                    file = Path(scratch, "file")
                    files.download(f"{folder}/{path}", file)
                if hash_file(file) != entry:
                    return f"{path} has other bytes than were committed"
            except FileNotFoundError:
                return f"{path} is missing"
            except OSError as error:
                if not _is_failing_disk(error):
                    raise StoreError(f"cannot read {file}: {error}") from error
                return f"{path} {unreadable(error)}"
    return ""


def _is_failing_disk(error: Exception) -> bool:
    return getattr(error.__cause__ or error, "errno", None) == errno.EIO
