"""Between clients and an S3 server: a process that may be killed, or hold a request back for ever.

    python -m tests.faults.gateway PORT SERVER_PORT FOLDER

It hands bytes on. While the file `hold` lies in the folder, a request whose first line matches the
pattern that it holds is kept back, and the file `held` appears; it never reaches the server.
"""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
from pathlib import Path

LOOPBACK = "127.0.0.1"
CHUNK = 1 << 16


def main(port: int, server: int, folder: Path) -> None:
    with socket.create_server((LOOPBACK, port)) as listener:
        (folder / "ready").touch()
        while True:
            client, _ = listener.accept()
            upstream = socket.create_connection((LOOPBACK, server))
            for arguments in ((client, upstream, folder), (upstream, client, None)):
                threading.Thread(target=hand_on, args=arguments, daemon=True).start()


def hand_on(source: socket.socket, sink: socket.socket, folder: Path | None) -> None:
    """One direction of a connection, to its end."""
    try:
        while chunk := source.recv(CHUNK):
            if folder is not None and _matches(chunk, folder / "hold"):
                (folder / "held").touch()
                while True:
                    time.sleep(60)
            sink.sendall(chunk)
    except OSError:
        pass
    finally:
        for end in (source, sink):
            end.close()


def _matches(chunk: bytes, hold: Path) -> bool:
    try:
        pattern = hold.read_text()
    except FileNotFoundError:
        return False
    return re.match(pattern, chunk.partition(b"\r\n")[0].decode("latin-1")) is not None


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
