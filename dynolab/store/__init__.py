"""Object store: create-only commits, verified reads, resume states, claims (`file://`, `s3://`)."""

from __future__ import annotations

from dynolab.store.claim import Claim
from dynolab.store.commit import Committed
from dynolab.store.manifest import (
    FileEntry,
    Manifest,
    git_revision,
    hash_file,
    library_versions,
)
from dynolab.store.store import Place, Store

__all__ = [
    "Claim",
    "Committed",
    "FileEntry",
    "Manifest",
    "Place",
    "Store",
    "git_revision",
    "hash_file",
    "library_versions",
]
