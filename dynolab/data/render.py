"""Renders a chat template, which is foreign code, in a process of its own.

Transformers runs templates in jinja's sandbox: they cannot reach outside it, but may run forever or
fill the memory, which here ends only this process. It reads from stdin one line of JSON with the
`template`, its `tokens` and `seconds`, then one line of messages per text. It writes to stdout one
line per text, with the `text` or the template's `error`.
"""

from __future__ import annotations

import json
import math
import resource
import sys
from pathlib import Path
from typing import Any

SECONDS_PER_TEXT = 0.1
"""CPU time per text, on top of the `seconds` shared by all; a template takes a millisecond."""
MEMORY = 2**30
LONGEST = 2**24
"""Maximum length of a text, in characters."""


def main() -> None:
    """Write texts until stdin ends."""
    from transformers.utils.chat_template_utils import render_jinja_template

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY)
    used = resource.getrusage(resource.RUSAGE_SELF)
    header = json.loads(sys.stdin.readline())
    seconds = used.ru_utime + used.ru_stime + header["seconds"]
    for line in sys.stdin:
        seconds += SECONDS_PER_TEXT
        _limit(resource.RLIMIT_CPU, math.ceil(seconds))
        try:
            rendered: Any = (
                render_jinja_template(  # returns texts and, despite its annotation, spans
                    conversations=[json.loads(line)],
                    chat_template=header["template"],
                    add_generation_prompt=True,
                    **header["tokens"],
                )
            )
            text = rendered[0][0]
            if len(text) > LONGEST:
                raise ValueError(f"it writes more than {LONGEST} characters")
            text.encode()  # raises for lone surrogates
            answer = {"text": text}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


def _limit(resource_id: int, limit: int) -> None:
    _, hard = resource.getrlimit(resource_id)
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource_id, (soft, hard))


if __name__ == "__main__":
    main()
