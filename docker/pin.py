"""Pins images to what their tags mean today: `name:tag` becomes `name:tag@sha256:…`.

    python docker/pin.py docker/compose.yaml docker/server.Dockerfile docker/worker.Dockerfile

Lines `image:` of compose files and `FROM` of Dockerfiles are rewritten in place; images that are
built here have no registry and stay. Run it again to move a pin to the tag's newest image.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

HUB = "https://registry-1.docker.io"
_IMAGE = re.compile(
    r"^(?P<before>\s*(?:image:|FROM)\s+)(?P<name>[a-z0-9][a-z0-9./_:-]*?):(?P<tag>[\w][\w.-]*)"
    r"(?:@sha256:[0-9a-f]{64})?(?P<after>\s.*)?$"
)
_KINDS = ", ".join(
    [
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    ]
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def pinned(text: str, hub: str = HUB) -> str:
    """A file's text with every image of a registry pinned."""
    return "".join(_pinned_line(line, hub) for line in text.splitlines(keepends=True))


def _pinned_line(line: str, hub: str) -> str:
    found = _IMAGE.match(line.rstrip("\n"))
    if found is None:
        return line
    name, tag = found["name"], found["tag"]
    return f"{found['before']}{name}:{tag}@{digest(name, tag, hub)}{found['after'] or ''}\n"


def digest(name: str, tag: str, hub: str = HUB) -> str:
    """The digest of the image, or of the index of its platforms, that a tag stands for now."""
    host, slash, rest = name.partition("/")
    elsewhere = slash and ("." in host or ":" in host)
    registry, path = (f"https://{host}", rest) if elsewhere else (hub, name)
    if not elsewhere and not slash:
        path = f"library/{name}"
    url = f"{registry}/v2/{path}/manifests/{tag}"
    try:
        answer = _head(url, None)
    except urllib.error.HTTPError as refused:
        if refused.code != 401:
            raise
        answer = _head(url, _token(refused.headers["WWW-Authenticate"]))
    found = str(answer["Docker-Content-Digest"])
    if not _DIGEST.fullmatch(found):
        raise ValueError(f"{url} has no digest: {found}")
    return found


def _head(url: str, token: str | None) -> dict[str, str]:
    headers = {"Accept": _KINDS} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(url, headers=headers, method="HEAD")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(answer.headers)


def _token(challenge: str) -> str:
    """What a registry lets everybody read with; it says itself where to get it."""
    asked = dict(_CHALLENGE.findall(challenge))
    realm = asked.pop("realm")
    url = f"{realm}?{urllib.parse.urlencode(asked)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(json.load(answer)["token"])


def main(files: list[str]) -> None:
    """Pins what the files name; each is written only when all of it is known."""
    for name in files:
        file = Path(name)
        file.write_text(pinned(file.read_text()))
        print(f"{file}: pinned")


if __name__ == "__main__":
    main(sys.argv[1:])
