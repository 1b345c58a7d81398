"""Renders a chat template, which is foreign code, in a process of its own.

Transformers runs templates in jinja's sandbox: they reach nothing, but may compute without end or
fill the memory. Here that ends this process alone. Read from stdin: one line of JSON with the
`template`, its `tokens` and `seconds`, then a line of messages for each text. Written to stdout:
for each a line with the `text`, or with the `error` that refused it.
"""

from __future__ import annotations

import json
import math
import resource
import sys
from pathlib import Path
from typing import Any

SECONDS_PER_TEXT = 0.1
"""Of computing, beyond the `seconds` that all texts share; a template takes a millisecond."""
MEMORY = 2**30
LONGEST = 2**24
"""Characters of a text."""


def main() -> None:
    """Write texts until stdin ends."""
    from transformers.utils.chat_template_utils import render_jinja_template

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY)
    used = resource.getrusage(resource.RUSAGE_SELF)
    given = json.loads(sys.stdin.readline())
    seconds = used.ru_utime + used.ru_stime + given["seconds"]
    for line in sys.stdin:
        seconds += SECONDS_PER_TEXT
        _limit(resource.RLIMIT_CPU, math.ceil(seconds))
        try:
            rendered: Any = render_jinja_template(  # texts and, unlike what it says, spans
                conversations=[json.loads(line)],
                chat_template=given["template"],
                add_generation_prompt=True,
                **given["tokens"],
            )
            text = rendered[0][0]
            if len(text) > LONGEST:
                raise ValueError(f"it writes more than {LONGEST} characters")
            text.encode()  # half characters are no text
            answer = {"text": text}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main()
