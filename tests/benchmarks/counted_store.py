"""An S3 server that counts the bytes that are sent to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import fsspec
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "counted"
LOGIN = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass
class CountedStore:
    """A bucket at an address of this machine; `sent` are bytes of bodies, whatever became of them.

    Copies that the server makes itself are not sent.
    """

    address: str = ""
    sent: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment, with which the platform keeps its results here."""
        return LOGIN | {
            "DYNOLAB_STORE": f"s3://{BUCKET}/store",
            "DYNOLAB_STORE_ENDPOINT": self.address,
        }

    def held(self) -> dict[str, int]:
        """Bytes of every file."""
        files = self._files().find(BUCKET, detail=True)
        return {path: int(facts["size"]) for path, facts in files.items()}

    def _files(self) -> Any:
        return fsspec.filesystem(
            "s3",
            key=LOGIN["AWS_ACCESS_KEY_ID"],
            secret=LOGIN["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=self.address,
            skip_instance_cache=True,
        )


@contextmanager
def counted_store() -> Iterator[CountedStore]:
    """A server with an empty bucket, for the duration of the block."""
    store, app = CountedStore(), DomainDispatcherApplication(create_backend_app)

    def counted(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("PUT", "POST"):
            store.sent += int(environ.get("CONTENT_LENGTH") or 0)
        return app(environ, start)

    server = make_server("127.0.0.1", 0, counted, threaded=True)
    store.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        store._files().mkdir(BUCKET)
        yield store
    finally:
        server.shutdown()
        thread.join()
