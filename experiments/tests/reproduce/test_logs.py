"""Logs of others: what they hold becomes paths, and what is damaged is refused in one message."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path

import numpy as np
import pytest

from dynolab.errors import ConfigError
from dynolab.results.arms import EXTENDED, FROM_BASE, SFT
from experiments.reproduce import logs
from experiments.reproduce.claims import CLAIMS, assess_log, claims_on
from experiments.reproduce.logs import LINES, NUMBERS, read_log
from experiments.tests.reproduce.made_up import NAMES, made_up, write_log


def test_a_log_becomes_paths_over_its_prompts(tmp_path: Path) -> None:
    values = made_up()
    log = read_log(write_log(tmp_path / "run", values), FROM_BASE)
    assert set(log.paths.logp) == {"chosen", "rejected", "argmax"}
    np.testing.assert_array_equal(log.paths.logp["rejected"], values[:, 2])
    np.testing.assert_array_equal(log.others["p_e"], values[:, 5])
    assert set(log.others) == {"chosen_A_o", "p_e"} and log.paths.steps.tolist() == list(range(9))
    verdicts = {verdict.id: verdict for verdict in assess_log(FROM_BASE, log.paths)}
    assert {name.partition("/")[2] for name in verdicts} == {"chosen", "rejected", "argmax", "gap"}
    assert {verdict.outcome for verdict in verdicts.values()} == {"holds"}
    assert all(figure.n == 40 for v in verdicts.values() for figure in v.measured)


def test_means_alone_have_effects_and_no_intervals(tmp_path: Path) -> None:
    values = made_up()
    log = read_log(write_log(tmp_path / "run", values, means_alone=True), FROM_BASE)
    assert len(log.paths.steps) == 9, "the line that stands twice counts once"
    verdicts = assess_log(FROM_BASE, log.paths)
    assert {verdict.outcome for verdict in verdicts} == {"unclear"}
    (rejected,) = (v for v in verdicts if v.id == "from-base/rejected")
    assert rejected.measured[0].mean == pytest.approx((values[-1, 2] - values[0, 2]).mean())


def test_what_cannot_be_y_star_is_left_out_and_so_is_what_a_prompt_lacks(tmp_path: Path) -> None:
    values = made_up()
    values[0, 3, 0] = -1e3  # y* of one prompt, below its chosen answer
    values[2, 2, 7] = np.inf
    log = read_log(write_log(tmp_path / "run", values), FROM_BASE, ["nothing"])
    assert "argmax" not in log.paths.logp and "y*" in log.note
    lost = np.isnan(log.paths.logp["rejected"])
    assert lost[:, 7].all() and lost.sum() == len(values)
    assert set(read_log(tmp_path / "run", FROM_BASE, ["rejected"]).paths.logp) == {"chosen"}


def test_claims_on_a_training_by_itself() -> None:
    assert {claim.name for claim in claims_on(SFT)} == {c.name for c in CLAIMS if c.training == SFT}
    extended = {claim.name for claim in claims_on(EXTENDED)}
    assert extended == {claim.name for claim in claims_on(SFT)} - {"rejected"}
    base = {claim.name: claim for claim in claims_on(FROM_BASE)}
    assert base["chosen"] in CLAIMS and base["argmax"].training == FROM_BASE


class Runs:
    """An object whose unpickling would write a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[Path, str]]:
        return Path.write_text, (self.file, "ran")


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def array(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return packed(file.getvalue())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (LINES, None),
        (LINES, b""),
        (LINES, b"{not json}\n"),
        (LINES, b'{"p_e": "text"}\n' * 2),
        (LINES, b"[" * 100_000),
        (LINES, b'{"p_e": 1}\n{"energy": 1}\n'),
        (LINES, b'{"p_e": 1}\n'),
        (LINES, b"\xff\xfe"),
        (f"{NUMBERS}.gz", b"no gzip"),
        (f"{NUMBERS}.gz", packed(b"no array")),
        (f"{NUMBERS}.gz", array(made_up())[:-400]),
        (f"{NUMBERS}.gz", array(made_up()[:, ::-1])),
        (f"{NUMBERS}.gz", array(made_up()[:, :3])),
        (f"{NUMBERS}.gz", array(made_up()[0])),
        (f"{NUMBERS}.gz", array(made_up()[..., None])),
        (f"{NUMBERS}.gz", array(np.float64(1))),
        (f"{NUMBERS}.gz", array(np.array(["text"]))),
    ],
    ids=map(str, range(17)),
)
def test_damaged_files_give_one_message(tmp_path: Path, name: str, content: bytes | None) -> None:
    folder = write_log(tmp_path / "run", made_up())
    if name == LINES:
        (folder / f"{NUMBERS}.gz").unlink()
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match="run") as refused:
        read_log(folder, FROM_BASE)
    assert refused.value.field == "--logs" and len(str(refused.value)) < 600


def test_nothing_in_a_log_runs_code(tmp_path: Path) -> None:
    folder, ran = write_log(tmp_path / "run", made_up()), tmp_path / "ran"
    (folder / f"{NUMBERS}.gz").write_bytes(array(np.array([Runs(ran)], dtype=object)))
    with pytest.raises(ConfigError):
        read_log(folder, FROM_BASE)
    (folder / f"{NUMBERS}.gz").write_bytes(packed(pickle.dumps(Runs(ran))))
    with pytest.raises(ConfigError):
        read_log(folder, FROM_BASE)
    assert not ran.exists()


def test_a_file_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 10_000)
    with pytest.raises(ConfigError, match="larger than"):
        read_log(write_log(tmp_path / "run", made_up(prompts=1_000)), FROM_BASE)
    assert len(NAMES) == made_up().shape[1]
