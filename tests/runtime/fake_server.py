"""Stands for a server: answers its process's number on an inherited socket, as fast as it can."""

from __future__ import annotations

import os
import socket
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Number(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(os.getpid()).encode())


if __name__ == "__main__":
    server = HTTPServer(("127.0.0.1", 0), Number, bind_and_activate=False)
    server.socket = socket.socket(fileno=int(sys.argv[3]))
    server.serve_forever()
