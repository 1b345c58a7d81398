from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.runtime.track.outbox import Outbox, Run, Sent, first_operation, sent_run

FIRST = {"op": "create", "name": "run"}


def metric(step: int) -> dict[str, object]:
    return {"op": "metrics", "step": step, "time": 1, "values": {"loss": 1.0}}


def adopted(box: Outbox) -> Outbox:
    again = Outbox.adopt(box.path)
    assert again is not None
    return again


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """This process may not write beyond this many bytes of a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_operations_come_back_in_order_and_offsets_survive(tmp_path: Path) -> None:
    box = Outbox.create(tmp_path, FIRST)
    for step in range(5):
        box.append(metric(step))
    operations = box.unsent(limit=3)
    assert [operation for operation, _ in operations] == [FIRST, metric(0), metric(1)]
    run = Run("r1", "7", "mlflow-artifacts:/7/r1/artifacts")
    box.mark(Sent(operations[-1][1], run), operations=3)
    assert box.pending == 3
    box.close()

    again = adopted(box)
    assert again.sent.run == sent_run(box.path) == run
    assert again.created.is_set() and again.pending == 3
    assert [operation for operation, _ in again.unsent(10)] == [metric(2), metric(3), metric(4)]
    again.remove()
    assert list(tmp_path.iterdir()) == []


def test_torn_and_unreadable_lines_are_left_out(tmp_path: Path) -> None:
    box = Outbox.create(tmp_path, FIRST)
    box.close()
    with box.path.open("ab") as stream:
        stream.write(b"\x00\x00\n" + json.dumps(metric(1)).encode() + b'\n{"op": "met')
    again = adopted(box)
    assert again.pending == 3
    assert [operation for operation, _ in again.unsent(10)] == [FIRST, {}, metric(1)]


def test_what_a_full_disk_refuses_waits_and_nothing_is_torn(tmp_path: Path) -> None:
    box = Outbox.create(tmp_path, FIRST)
    with files_end_at(box.path.stat().st_size + 20):  # part of a line
        for step in range(3):
            with pytest.raises(OSError, match="File too large"):
                box.append(metric(step))
        assert [operation for operation, _ in box.unsent(10)] == [FIRST]
        assert box.pending == 4
    assert [operation for operation, _ in box.unsent(10)] == [FIRST, *map(metric, range(3))]
    box.append(metric(3))
    assert box.pending == 5
    box.close()
    assert [operation for operation, _ in adopted(box).unsent(10)][1:] == [*map(metric, range(4))]


def test_unreadable_state_sends_all_again(tmp_path: Path) -> None:
    box = Outbox.create(tmp_path, FIRST)
    box.mark(Sent(10_000), operations=1)
    box.close()
    box.path.with_suffix(".state").write_text('{"offset": ')
    again = adopted(box)
    assert again.sent == Sent()


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    box = Outbox.create(tmp_path, FIRST)
    assert Outbox.adopt(box.path) is None  # also within one process
    program = (
        "import sys; from pathlib import Path; from tasks.runtime.track.outbox import Outbox\n"
        "print(Outbox.adopt(Path(sys.argv[1])) is not None)"
    )

    def other_process_gets_it() -> bool:
        command = [sys.executable, "-c", program, str(box.path)]
        return subprocess.run(command, check=True, capture_output=True).stdout == b"True\n"

    assert not other_process_gets_it()
    box.close()
    assert other_process_gets_it()
    again = adopted(box)  # the kernel has taken the lock back from the ended process
    again.remove()
    assert Outbox.adopt(box.path) is None
    assert first_operation(box.path) == {}


def test_artifacts_are_copied(tmp_path: Path) -> None:
    box = Outbox.create(tmp_path / "outbox", FIRST)
    for text in ("first", "second"):
        (tmp_path / "plot.html").write_text(text)
        name = box.keep_artifact(tmp_path / "plot.html")
        assert box.artifact(name).read_text() == text
    assert len(list(box.path.with_suffix(".files").iterdir())) == 2
