"""Makes the bucket that a new S3 store needs: `python -m tasks.runtime.servers.bucket`."""

from __future__ import annotations

import os
from collections.abc import Mapping


def make_bucket(environment: Mapping[str, str]) -> str:
    """Create the bucket of DYNOLAB_STORE if it does not exist; returns its name."""
    import fsspec

    bucket = environment["DYNOLAB_STORE"].removeprefix("s3://").partition("/")[0]
    files = fsspec.filesystem(
        "s3",
        key=environment["AWS_ACCESS_KEY_ID"],
        secret=environment["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=environment.get("DYNOLAB_STORE_ENDPOINT"),
        skip_instance_cache=True,
    )
    if not files.exists(bucket):
        files.mkdir(bucket)
    return bucket


if __name__ == "__main__":
    print(make_bucket(os.environ))
