"""Inputs that cannot work, as data, and what the command makes of each.

A message is clear if it is one line that names the field and what to do. What is only odd, such as
a pair of two equal answers, has to be counted by the plan.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from dynolab.functions import ALLOWED
from flows import cli, commands, explore, init, push, up  # noqa: F401
from flows.registry import FLOWS, load_flow
from tests.training.small import make_files

Verdict = Literal["clear", "unclear", "traceback", "hang", "accepted"]
HANG_SECONDS = 10.0
"""A command that says nothing for longer hangs."""

PIPE = None
"""In place of a file's content: a named pipe that nobody writes into."""


@dataclass(frozen=True)
class BadInput:
    """A command in a folder with some files; `{folder}` in either is that folder.

    `said`: what its only line says first, after "error"; or, if `counted`, some of what the plan
    prints.
    """

    name: str
    said: str
    arguments: Sequence[str]
    files: Mapping[str, str | bytes | None] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    counted: bool = False


def _set(change: str, said: str | None = None, command: str = "study") -> BadInput:
    """A setting of a built-in study."""
    name = change if len(change) < 60 else f"{change[:60]}…"
    said = f"{change.partition('=')[0]} = " if said is None else said
    return BadInput(f"{command} {name}", said, [command, "--set", change, "--plan"])


def _file(name: str, said: str, content: str | bytes | None, command: str = "study") -> BadInput:
    """A study file."""
    return BadInput(name, said, [command, "study.yaml", "--plan"], {"study.yaml": content})


GOOD_ROW = {"prompt": "w1 w2", "chosen": " w3", "rejected": " w4"}
LONG = "w1 " * 3_500_000
ROWS = [GOOD_ROW | {"id": f"r{number}", "prompt": f"w1 w{number}"} for number in range(12)]
STUDY = """\
name: rows
data: {{source: file, path: {file}, heldout_rows: 2, probe_pairs: 2{more}}}
base: {{source: model}}
sft: null
preference: {{engine: {{kind: plain, ranks: 1}}, steps: 2, batch_size: 2, micro_batch_size: 2}}
"""


def _rows(
    name: str,
    said: str,
    rows: Sequence[Any] | str | bytes | None,
    *,
    file: str = "rows.jsonl",
    more: str = "",
    counted: bool = False,
) -> BadInput:
    """Rows of a study, the first ones of its file or all of it."""
    content = rows
    if isinstance(rows, list):
        good = [json.dumps(row) for row in ROWS[len(rows) :]]
        content = "\n".join([*map(json.dumps, rows), *good]) + "\n"
    files = {"study.yaml": STUDY.format(file=file, more=more), file: content}
    return BadInput(name, said, ["study", "study.yaml", "--plan"], files, counted=counted)


def _chat(name: str, said: str, template: str, **more: Any) -> BadInput:
    """Rows of messages, and the chat template of the model."""
    turns = {side: [{"role": "assistant", "content": side}] for side in ("chosen", "rejected")}
    row = {"prompt": [{"role": "user", "content": "w1"}], **turns, **more}
    files = {
        "model/chat_template.jinja": template,
        "chat.jsonl": "".join(json.dumps(row) + "\n" for _ in ROWS),
    }
    arguments = ["audit", "--model", "model", "--data", "chat.jsonl", "--plan"]
    return BadInput(name, f"chat.jsonl row 0 (line 1){said}", arguments, files)


def _loss(name: str, said: str, code: str, settings: str = "{}") -> BadInput:
    """A user's loss, `loss` of mine.py."""
    change = f"preference.objective={{name: custom, loss: mine.loss, settings: {settings}}}"
    arguments = ["study", "--set", change, "--plan"]
    return BadInput(name, said, arguments, {"mine.py": code}, {ALLOWED: "mine"})


def _reward(name: str, said: str, code: str) -> BadInput:
    change = "training.rewards=[{name: mine.reward}]"
    arguments = ["grpo", "--set", change, "--plan"]
    return BadInput(name, said, arguments, {"mine.py": code}, {ALLOWED: "mine"})


def _command(said: str, *arguments: str, **more: Any) -> BadInput:
    name = " ".join([*more.get("variables", ()), *arguments])
    return BadInput(name, said, arguments, **more)


LOSS = "preference.objective.loss = 'mine.loss': "
SETTINGS = [
    _set("preference.optimizer.learning_rate=.inf"),
    _set("preference.optimizer.learning_rate=1e300"),
    _set("preference.optimizer.learning_rate=.nan"),
    _set("preference.optimizer.learning_rate=0"),
    _set("preference.optimizer.betas=[1.5, 0.9]", "preference.optimizer.betas.0 = 1.5"),
    _set("preference.optimizer.betas=[0.9, -0.1]", "preference.optimizer.betas.1 = -0.1"),
    _set("preference.optimizer.betas=[0.9]"),
    _set("preference.optimizer.epsilon=.inf"),
    _set("preference.optimizer.weight_decay=.inf"),
    _set("preference.optimizer.weight_decay=-1"),
    _set("preference.optimizer.momentum=1"),
    _set("preference.optimizer.name=adam"),
    _set("preference.objective.beta=.inf"),
    _set("preference.objective.beta=yes"),
    _set("preference.objective.beta=-1"),
    _set("preference.objective.name=dpoo"),
    _set("preference.clip_norm=.inf"),
    _set("preference.clip_norm=0"),
    _set("preference.steps=0"),
    _set("preference.steps=1.5"),
    _set("sft.steps=1000000000000000000"),
    _set("sft.batch_size=1000000000000"),
    _set("sft.batch_size=3"),
    _set("sft.seed=1"),
    _set("sft.max_length=1"),
    _set("sft.record_steps=[9999]"),
    _set("sft.stepz=3"),
    _set("seed=1180591620717411303424"),
    _set("seed=-1"),
    _set("seed=1.5"),
    _set("name=../escape"),
    _set("name="),
    _set("project=[a]"),
    _set("data.source=disk"),
    _set("data.name=a b"),
    _set("data.world.entities=1000000000000"),
    _set("data.world.entities=2"),
    _set("data.probe_pairs=-1"),
    _set("probe.answers=many"),
    _set("probe.answer_tokens=0"),
    _set("forces.pairs=0"),
    _set("preference.best={metric: nothing}", "best.metric = 'nothing'"),
    _set("preference.ledger={kinds: [nothing]}", "ledger.kinds = 'nothing'"),
    _set("ledger={measures: [anger]}", "ledger.measures.0"),
    _set("ledger={rewards: [{name: nothing}]}", "ledger.rewards"),
    _set("kernel=everything"),
    _set("sft..steps=3", "--set = 'sft..steps=3'"),
    _set("sft.steps", "--set = 'sft.steps'"),
    _set("sft.steps=[", "--set = 'sft.steps=['"),
    _set("sft.steps={{{{"[:11], "--set = "),
    _set("seed.of.all=3", "--set = 'seed.of.all=3'"),
    _set("space.seed={values: [true, {a: 1}]}", "space.seed.values.1 = ", "sweep"),
    _set("space.sft.steps={low: 5}", "space.sft.steps", "sweep"),
    _set("trials=0", command="sweep"),
    _set("training.completions=1", command="grpo"),
    _set("training.temperature=.inf", command="grpo"),
    _set("arms.grpo.kl_cov={}", "arms.grpo = 1: kl_cov", command="grpo"),
    _set("arms.grpo.advantage_rule={name: nthr, p: 0.5}", "advantage_rule.p = 0.5", command="grpo"),
    _set("arms={}", command="mitigation"),
    _set("seeds=[]", command="mitigation"),
    _set("seeds=[0, 0]", command="mitigation"),
]
FILES = [
    _file("a section twice", "config = ", "sft: {steps: 3}\nname: a\nsft: {steps: 4}\n"),
    _file("a setting twice", "config = ", "name: a\nsft: {steps: 3, steps: 4}\n"),
    _file(
        "aliases of aliases",
        "config = ",
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
            for before, name in zip("abcdefgh", "bcdefghi", strict=True)
        ),
    ),
    _file("an alias of itself", "config = ", "name: &a [*a]\n"),
    _file("syntax", "config = ", "sft: {steps: 3\nname: [\n"),
    _file("no text", "config = ", b"\xff\xfe\x00"),
    _file("a file of 12 MB", "config = ", f"a: [{'x, ' * 4_000_000}x]\n"),
    _file("nested too deep", "config = ", "[" * 3000),
    _file("a list", "config = ", "- sft\n"),
    _file("a date that is none", "config = ", "name: 2024-13-45\n"),
    _file("a pipe as study file", "config = ", PIPE),
    _file("settings that are numbers", "3 = ", "3: 4\n"),
    _file("python in YAML", "config = ", "name: !!python/object/apply:os.system ['true']\n"),
    _file("an unknown section", "sfd = ", "sfd: {steps: 3}\n"),
    _file("a section of the wrong kind", "sft = ", "sft: 3\n"),
    _file("an unset variable", "data.path = ", "data: {source: file, path: '${DYNOLAB_NONE}'}\n"),
]
DATA = [
    _rows("no rows", "data = ", ""),
    _rows("one row", "data = ", json.dumps(GOOD_ROW)),
    _rows("a line that is no JSON", "data.path = 'rows.jsonl line 1'", "{\n"),
    _rows("a line that is a number", "rows.jsonl line 1 = ", "3\n4\n"),
    _rows("bytes", "data.path = 'rows.jsonl line 1'", b"\xff\xfe\x00\n"),
    _rows("a file that is no gzip", "data.path = ", "{}", file="rows.jsonl.gz"),
    _rows("a table that is none", "data.path = ", "PAR1", file="rows.parquet"),
    _rows("a pipe as rows", "data.path = ", PIPE),
    _rows(
        "no answer", "rows.jsonl row 0 (line 1), column chosen = ", [GOOD_ROW | {"chosen": None}]
    ),
    _rows("an answer that is a number", "rows.jsonl row 0 (line 1)", [GOOD_ROW | {"chosen": 3}]),
    _rows("an answer by name", "rows.jsonl row 0 (line 1)", [GOOD_ROW | {"chosen": {"a": 1}}]),
    _rows("messages without roles", "rows.jsonl row 0 (line 1)", [GOOD_ROW | {"chosen": [{}]}]),
    _rows("a prompt that is a number", "rows.jsonl row 0 (line 1)", [GOOD_ROW | {"prompt": 3}]),
    _rows("no prompt", "rows.jsonl row 0 (line 1)", [{"chosen": " w1"}] * 12),
    _rows("columns of something else", "rows.jsonl row 0 (line 1) = ", [{"a": 1}] * 12),
    _rows("two rows of one id", "data = ", [GOOD_ROW | {"id": "x"}] * 2),
    _rows("wins that are no shares", "rows.jsonl row 0", [GOOD_ROW | {"wins": [2, 0]}]),
    _rows("a negative weight", "rows.jsonl row 0", [GOOD_ROW | {"weight": -1}]),
    _rows("half a surrogate pair", "data.path = 'rows.jsonl line 1'", b'{"prompt": "\\ud800"}\n'),
    _rows(
        "a prompt of 10 MB",
        "rows.jsonl row 0 (line 1) = ",
        [GOOD_ROW | {"prompt": "w1 " * 3_500_000}],
    ),
    _rows("an answer beyond the context", "overlong = ", [GOOD_ROW | {"chosen": " w1" * 99}]),
    _rows("no rejected answers", "data.rejected = ", [{"prompt": "w1", "chosen": " w2"}] * 12),
    _rows(
        "answers of UltraFeedback that are none",
        "rows.jsonl row 0 (line 1) = ",
        [{"instruction": "w1", "completions": 3}] * 12,
    ),
    _rows(
        "ranks of Nectar that are none",
        "rows.jsonl row 0 (line 1) = ",
        [{"prompt": "w1", "answers": [{"answer": "w2"}]}] * 12,
    ),
    _rows(
        "labels of some rows only",
        "rows.jsonl = ",
        [{"prompt": "w1", "completion": "w2", "label": True}, *[{"prompt": "w1"}] * 11],
    ),
    _rows("a missing column", "data.columns = ", [], more=", columns: {prompt: question}"),
    _rows("more held out than there is", "data.heldout_rows = ", ROWS[:3], more=", rows: 3"),
    _rows(
        "every pair of two equal answers",
        "data = ",
        [row | {"rejected": row["chosen"]} for row in ROWS],
    ),
    _rows("every answer empty", "data = ", [row | {"chosen": ""} for row in ROWS]),
    _rows(
        "one pair of two equal answers",
        "1 with two equal answers",
        [GOOD_ROW | {"rejected": " w3"}],
        counted=True,
    ),
    _rows("an empty answer", "1 with an empty answer", [GOOD_ROW | {"chosen": ""}], counted=True),
    _rows("an empty prompt", "1 with an empty prompt", [GOOD_ROW | {"prompt": ""}], counted=True),
    _file(
        "a file that is not there",
        "data.path = ",
        "data: {source: file, path: none.jsonl}\nbase: {source: model}\n",
    ),
    _file(
        "a path with a zero byte",
        "data.path = ",
        'data: {source: file, path: "a\\0b"}\nbase: {source: model}\n',
    ),
]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
OWN, LOOP = ", column chat_template_kwargs = ", "{% for a in range(99999) %}"
CHAT = [
    _chat("a template of a row's own", OWN, TEMPLATE, chat_template_kwargs={"chat_template": LOOP}),
    _chat("a renderer's argument", OWN, TEMPLATE, chat_template_kwargs={"tokenize": True}),
    _chat("options that are a text", OWN, TEMPLATE, chat_template_kwargs="x"),
    _chat("a template without end", " = '5 s'", f"{LOOP * 3}{'{% endfor %}' * 3}{TEMPLATE}"),
    _chat("a template that is none", " = ", "{% for %}"),
    _chat("a template that refuses", " = ", "{{ raise_exception('no') }}"),
]
CODE = [
    _loss("a loss with a fault of syntax", LOSS, "def loss(:\n"),
    _loss("a loss whose import fails", LOSS, "1 / 0\n"),
    _loss("a loss whose import ends", LOSS, "import sys\nsys.exit(0)\n"),
    _loss("a loss whose call fails", LOSS, "def loss(a, b):\n    return a.nothing\n"),
    _loss("a loss whose call ends", LOSS, "import sys\n\n\ndef loss(a, b):\n    sys.exit(0)\n"),
    _loss("an unknown argument", LOSS, "def loss(a, b):\n    return a.ratio\n", "{gamma: 1}"),
    _loss("a loss that is a class", LOSS, "class loss:\n    pass\n"),
    _loss("a loss of one number", LOSS, "def loss(a, b):\n    return a.ratio.mean()\n"),
    _loss("a loss that is not there", LOSS, ""),
    _set(
        "preference.objective={name: custom, loss: os.system}",
        "preference.objective.loss = 'os.system'",
    ),
    _set(
        "preference.objective={name: custom, loss: mod.__class__}",
        "preference.objective.loss = 'mod.__class__'",
    ),
    _reward("a reward with a fault of syntax", "training.rewards = ", "def reward(:\n"),
    _reward("a reward that is not there", "training.rewards = ", ""),
]
COMMANDS = [
    _command("'--port'", "explore", "--port", "99999"),
    _command("'--port'", "explore", "--port", "-1"),
    _command("'--prefect-port'", "up", "--prefect-port", "99999"),
    _command("'--mlflow-port'", "up", "--mlflow-port", "70000"),
    _command("RESULT = 'report/zz'", "explore", "report/zz"),
    _command("address = 'preference/../..'", "path", "preference/../.."),
    _command("address = 'nothing'", "path", "nothing"),
    _command("--hub = None", "push"),
    _command("--to = ", "push", "--to", "model"),
    _command("--model = 'none'", "audit", "--model", "none", "--data", "train.jsonl", "--plan"),
    _command("--data = ", "audit", "--model", "model", "--data", "none.jsonl", "--plan"),
    _command("--model = ''", "audit", "--model", "", "--data", "train.jsonl", "--plan"),
    _command("FILE = ", "init", "--model", "model", "--data", "train.jsonl", "train.jsonl"),
    _command("--trained = 'none'", "audit", "--model", "model", "--trained", "none", "--plan"),
    _command("--data = ", "audit", "--model", "model", "--data", "pipe", files={"pipe": PIPE}),
    _command("--model = ", "init", "--model", "none", "--data", "train.jsonl"),
    _command("--data = ", "init", "--model", "model", "--data", "none.jsonl"),
    _command("FILE = ", "init", "--model", "model", "--data", "train.jsonl", "none/study.yaml"),
    _command("--machine = 'mine'", "study", "--plan", "--machine", "mine"),
    _command("config = 'none.yaml'", "study", "none.yaml"),
    _command("config = ", "study", "."),
    _command("--config = ", "study", "a.yaml", "--config", "b.yaml"),
    _command("--fresh = 'nonsense'", "study", "--fresh", "nonsense", "--plan"),
    _command("trained = ", "ledger", "--set", "trained=none", "--set", "study=null", "--plan"),
    _command("No such option", "study", "--stepz", "3"),
    _command("No such command", "stdy"),
    _command("DYNOLAB_STORE = ", "study", "--plan", variables={"DYNOLAB_STORE": "gopher://a"}),
    _command("DYNOLAB_HOSTS = ", "study", "--plan", variables={"DYNOLAB_HOSTS": "two"}),
    _command(
        "DYNOLAB_HOME = ",
        "study",
        "--plan",
        variables={"DYNOLAB_HOME": "{folder}/pipe"},
        files={"pipe": PIPE},
    ),
    _command("MLFLOW_TRACKING_URI = ", "study", "--plan", variables={"MLFLOW_TRACKING_URI": "x"}),
]
BAD_INPUTS = [*SETTINGS, *FILES, *DATA, *CHAT, *CODE, *COMMANDS]


def make_folder(folder: Path, bad: BadInput, model: Path) -> None:
    """Writes the files that a command reads, beside a small model and its rows."""
    shutil.copytree(model, folder)
    for name, content in bad.files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if content is PIPE:
            os.mkfifo(file)
        else:
            file.write_bytes(content.encode() if isinstance(content, str) else content)


def environment(folder: Path, bad: BadInput) -> dict[str, str]:
    """Variables of a command: a home of its own, and nothing of the network."""
    variables = {"DYNOLAB_HOME": f"{folder}/home", "HF_HUB_OFFLINE": "1", "COLUMNS": "400"}
    return variables | {name: text.format(folder=folder) for name, text in bad.variables.items()}


def judged(bad: BadInput, code: int, printed: str, complained: str) -> Verdict:
    """What a command that ended made of a bad input."""
    if "Traceback" in printed + complained:
        return "traceback"
    if bad.counted:
        return "clear" if bad.said in printed else "accepted"
    if code == 0:
        return "accepted"
    lines = complained.strip().split("\n")
    is_usage = lines[0].startswith("Usage: ")
    is_one_line = len(lines) == 1 and lines[0].startswith(f"error {bad.said}")
    named = bad.said in complained if is_usage else is_one_line
    return "clear" if named and not UNCLEAR.search(complained) else "unclear"


UNCLEAR = re.compile(r"should match pattern|values\.\d+\.(bool|int|float|str) =|updating example")
"""Words of libraries that do not say what to do."""


def run(bad: BadInput, folder: Path, model: Path) -> tuple[Verdict, str]:
    """Runs a command in a process forked from this one; what became of it, and what it printed."""
    make_folder(folder, bad, model)
    printed, complained = folder / "printed.txt", folder / "complained.txt"
    child = os.fork()
    if not child:
        _become(bad, folder, printed, complained)
    code, said, since = None, 0, time.monotonic()
    while code is None and time.monotonic() - since < HANG_SECONDS:
        time.sleep(0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if ended else None
        size = sum(file.stat().st_size for file in (printed, complained) if file.exists())
        if size != said:
            said, since = size, time.monotonic()
    if code is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    texts = [file.read_text() for file in (printed, complained)]
    return "hang" if code is None else judged(bad, code, *texts), "".join(texts)


def _become(bad: BadInput, folder: Path, printed: Path, complained: Path) -> NoReturn:
    """Goes on as the command, with its output in files, and ends."""
    for number, file in enumerate((printed, complained), start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(environment(folder, bad))
    sys.path.insert(0, str(folder))
    sys.argv = ["dynolab", *bad.arguments]
    os.chdir(folder)
    code = 1
    try:
        cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(wanted: str) -> None:
    """Prints a line of JSON for each bad input whose name has the pattern."""
    for name in FLOWS:
        load_flow(name)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_files(model)
        for number, bad in enumerate(BAD_INPUTS):
            if re.search(wanted, bad.name):
                began = time.monotonic()
                verdict, text = run(bad, Path(folder) / str(number), model)
                seconds = round(time.monotonic() - began, 2)
                row = {"name": bad.name, "verdict": verdict, "seconds": seconds, "text": text}
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
