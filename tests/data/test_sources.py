"""Where rows come from, alone or mixed: what is loaded, split, pinned, probed and refused."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dynolab.data.rows import rows_by_source, with_rejected, write_rows
from dynolab.data.source_checks import file_digest
from dynolab.data.sources.load import DataConfig, load_data, load_prompts, resolve_data
from dynolab.errors import ConfigError
from flows.parameters.parse import load_parameters
from flows.probes import ProbesParameters
from tests.data.rows_files import file_config, write

REAL = os.environ.get("DYNOLAB_TEST_DATA")
real = pytest.mark.skipif(not REAL, reason="DYNOLAB_TEST_DATA names no folder of real data")


PROMPTS = {"format": "prompts"}
SAID = {"role": "assistant", "content": "It is."}


def numbered(count: int, name: str = "q") -> list[dict[str, Any]]:
    return [
        {"prompt": f"{name} {n}", "chosen": f"good {name} {n}", "rejected": f"bad {name} {n}"}
        for n in range(count)
    ]


def test_pairs_are_split_and_probed(tmp_path: Path) -> None:
    config = file_config(write(tmp_path, numbered(20)), heldout_rows=5, probe_pairs=3)
    data = load_data(config)
    assert (len(data.pairs), len(data.heldout)) == (15, 5)
    assert Counter(row.split for row in data.probes) == {"train": 18, "heldout": 18}
    assert load_data(config).probes == data.probes
    other = load_data(config.model_copy(update={"seed": 1}))
    assert [row.id for row in other.heldout] != [row.id for row in data.heldout]


def test_frozen_rows_keep_their_bytes(tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = [
        {side: " ".join(rng.choices("abc", k=3)) for side in ("prompt", "chosen", "rejected")}
        for _ in range(200)
    ]
    rows += [row | {"weight": 0.5, "wins": [0, 1], "id": f"w{n}"} for n, row in enumerate(rows[:9])]
    rows += [{"prompt": "\n\nHuman: é\n\nHuman: a b c", "chosen": "", "rejected": "\u2028"}]
    data = load_data(file_config(write(tmp_path, rows), heldout_rows=40, probe_pairs=9))
    digests = []
    for part in (data.pairs, data.heldout, data.probes):
        write_rows(tmp_path / "part", part)
        digests.append(file_digest("", tmp_path / "part").hex()[:8])
    assert digests == ["357c14d6", "3017c189", "3ec46353"]


def test_only_the_first_rows_are_used(tmp_path: Path) -> None:
    data = load_data(file_config(write(tmp_path, numbered(20)), rows=6, heldout_rows=2))
    assert len(data.pairs) + len(data.heldout) == 6
    assert data.probes == []


def test_heldout_rows_that_stand_in_training_are_left_out(tmp_path: Path) -> None:
    data = load_data(file_config(write(tmp_path, [*numbered(10), *numbered(10)]), heldout_rows=10))
    assert len(data.heldout) + data.counts["data/heldout_rows_in_training"] == 10
    assert not {row.prompt for row in data.heldout} & {row.prompt for row in data.pairs}


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([], {}, "has no rows"),
        (numbered(3), {"heldout_rows": 2}, "data.heldout_rows = 2"),
        ([{"id": "a", **row} for row in numbered(3)], {}, "ids must be unique"),
        ([{"question": "q"}], {}, "needs columns prompt"),
        (
            [{"asked": [SAID], "chosen": SAID, "rejected": SAID}] * 3,
            {"format": "chat", "chat": "plain"},
            r"none of 3 rows .* \(read: chosen, rejected; ignored: asked\)",
        ),
        ([{"id": "a", "prompt": "p"}] * 3, PROMPTS, "ids must be unique"),
        ([{"prompt": "p"}] * 3, PROMPTS | {"heldout_rows": 2}, "data.heldout_rows = 2"),
    ],
)
def test_data_that_cannot_work_is_refused(
    tmp_path: Path, rows: list[dict], options: dict, message: str
) -> None:
    load = load_prompts if options.get("format") == "prompts" else load_data
    with pytest.raises(ConfigError, match=message):
        load(file_config(write(tmp_path, rows), **options))


def test_unknown_files_are_refused(tmp_path: Path) -> None:
    for path in ("none.jsonl", str(tmp_path)):
        with pytest.raises(ConfigError, match=r"data\.path"):
            load_data(DataConfig(source="file", path=path))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"source": "file"}, "path"),
        ({"source": "hub"}, "hub_name"),
        ({"path": "rows.jsonl"}, "path"),
        ({"source": "file", "path": "a", "hub_name": "b/c"}, "hub_name"),
    ],
)
def test_a_source_and_its_place_belong_together(options: dict, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"data\.{field}"):
        DataConfig(**options)


def test_a_changed_file_has_another_revision(tmp_path: Path) -> None:
    resolved = resolve_data(file_config(write(tmp_path, numbered(3))))
    assert resolved.revision is not None
    assert resolve_data(resolved) == resolved
    write(tmp_path, numbered(4))
    with pytest.raises(ConfigError, match=r"data\.revision"):
        resolve_data(resolved)


def test_the_hub_s_library_is_loaded_for_its_data_alone_which_are_named_in_errors() -> None:
    code = """
import sys
from dynolab.data.sources.load import DataConfig, load_data
assert "datasets" not in sys.modules
load_data(DataConfig(source="hub", hub_name="a/b", revision="0" * 40, hub_folder="main"))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert "ConfigError: data.hub_name = 'a/b'" in last and "hub_folder = 'main'" in last


def test_rejected_answers_are_replaced_one_by_one(tmp_path: Path) -> None:
    train = load_data(file_config(write(tmp_path, numbered(3)))).pairs
    own = with_rejected(train, ["a", "b", "c"])
    assert [row.rejected for row in own] == ["a", "b", "c"]
    assert [row.chosen for row in own] == [row.chosen for row in train]
    with pytest.raises(ValueError, match="shorter"):
        with_rejected(train, ["a"])


def test_a_probe_set_built_before_is_watched_in_place_of_a_new_one(tmp_path: Path) -> None:
    config = file_config(write(tmp_path, numbered(20)), heldout_rows=5, probe_pairs=3)
    built = load_data(config).probes[::2]
    write_rows(tmp_path / "probes.jsonl", built)
    watched = config.model_copy(update={"probes": str(tmp_path / "probes.jsonl")})
    assert load_data(watched).probes == built
    resolved = resolve_data(watched)
    assert resolved.probes_revision and resolve_data(resolved) == resolved
    write_rows(tmp_path / "probes.jsonl", built[1:])
    with pytest.raises(ConfigError, match=r"data\.probes_revision"):
        resolve_data(resolved)


def test_a_probe_set_of_other_rows_is_refused(tmp_path: Path) -> None:
    config = file_config(write(tmp_path, numbered(20)), heldout_rows=5, probe_pairs=3)
    file = tmp_path / "probes.jsonl"
    write_rows(file, load_data(config).probes)
    other = config.model_copy(update={"probes": str(file), "seed": 1})
    reasons = {
        file.read_text(): "with the same data settings and seed",
        "": "has no rows",
        '{"kind": "chosen"}\n': r"probes\.jsonl line 1 = 'pair_id'",
    }
    for content, reason in reasons.items():
        file.write_text(content)
        with pytest.raises(ConfigError, match=reason):
            load_data(other)
    file.unlink()
    with pytest.raises(ConfigError, match=r"data\.probes"):
        resolve_data(other)


@real
def test_the_papers_probe_file() -> None:
    source = str(Path(str(REAL)) / "data/probes/hh_helpful_probe_train.jsonl.gz")
    data = load_data(file_config(source, format="probe_file", probe_pairs=500))
    assert Counter(row.kind for row in data.probes) == dict.fromkeys(
        {row.kind for row in data.probes}, 500
    )
    assert len(data.probes) == 500 * 13
    flags = Counter((row.kind, flag) for row in data.probes for flag in row.flags)
    assert flags == {
        ("chosen_initial", "empty"): 21,
        ("rejected", "empty"): 1,
        ("irr_test", "in_training"): 14,  # six are answers, the others turns of prompts
        ("random_nonhum", "in_training"): 1,
        ("irr_test", "identical"): 1,
        ("chosen_selfr", "identical"): 1,
        ("random_permute", "identical"): 9,
    }
    assert all(
        row.response == "" or row.response[0] == " " != row.response[1]
        for row in data.probes
        if row.kind not in ("chosen", "rejected")  # as they are written
    )
    assert data.counts["data/empty_answers"] == 1


@real
def test_raw_hh_transcripts() -> None:
    source = str(Path(str(REAL)) / "data/hh/harmless-base_test.jsonl.gz")
    data = load_data(DataConfig(source="file", path=source, format="hh", probe_pairs=50))
    assert data.counts["data/rows_without_common_prompt"] == 5
    assert len(data.pairs) == 2312 - 5 - 100
    assert all(row.prompt.endswith("\n\nAssistant:") for row in data.pairs)
    irrelevant = {row.response for row in data.probes if row.kind == "irr_test"}
    assert irrelevant and not irrelevant & {row.chosen for row in data.pairs}


def mixed(tmp_path: Path, **settings: Any) -> DataConfig:
    places = {}
    for name, count in (("news", 30), ("tales", 50)):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        places[name] = str(write(folder, numbered(count, name)))
    other = {"source": "file", "path": places["tales"], "heldout_rows": 10, "share": 0.5}
    own = {"source": "file", "path": places["news"], "heldout_rows": 6, "name": "news"}
    return DataConfig.model_validate(own | {"also": {"tales": other}, "probe_pairs": 4} | settings)


def test_each_source_has_its_share_and_its_rows_carry_its_name(tmp_path: Path) -> None:
    data = load_data(mixed(tmp_path))
    train = rows_by_source([row.id for row in data.pairs])
    # 24 and 40 rows to train on: all of the first, and half as many of the other.
    assert {name: len(places) for name, places in train.items()} == {"news": 24, "tales": 12}
    heldout = rows_by_source([row.id for row in data.heldout])
    assert {name: len(places) for name, places in heldout.items()} == {"news": 6, "tales": 10}
    for row in [*data.pairs, *data.heldout]:
        assert row.prompt.startswith(row.id.partition("/")[0])
    watched = {row.pair_id.partition("/")[0] for row in data.probes}
    assert watched and watched <= {"news", "tales"}
    assert data.counts["data/rows_beyond_share"] == 28
    assert load_data(mixed(tmp_path)).pairs == data.pairs
    assert load_data(mixed(tmp_path, seed=1)).pairs != data.pairs


def test_a_prompt_of_another_source_is_not_held_out(tmp_path: Path) -> None:
    config = mixed(tmp_path)
    again = config.also["tales"].model_copy(update={"path": config.path, "heldout_rows": 0})
    data = load_data(config.model_copy(update={"also": {"tales": again}}))
    trained = {row.prompt for row in data.pairs}
    assert not trained & {row.prompt for row in data.heldout}


def test_every_source_s_content_is_pinned(tmp_path: Path) -> None:
    config = resolve_data(mixed(tmp_path))
    assert config.revision and config.also["tales"].revision
    write(tmp_path / "tales", numbered(49, "tales"))
    with pytest.raises(ConfigError, match="revision"):
        resolve_data(config)


def test_a_study_file_names_sources_relative_to_itself(tmp_path: Path) -> None:
    mixed(tmp_path)
    file = tmp_path / "study.yaml"
    names = [next((tmp_path / name).iterdir()).relative_to(tmp_path) for name in ("news", "tales")]
    tales = f"{{source: file, path: {names[1]}}}"
    file.write_text(f"data: {{source: file, path: {names[0]}, also: {{tales: {tales}}}}}")
    data = load_parameters(ProbesParameters, file).data
    assert data.also["tales"].path == str(tmp_path / names[1])
    assert {row.id.partition("/")[0] for row in load_data(data).pairs} == {"main", "tales"}


def test_a_mix_that_cannot_be_is_refused(tmp_path: Path) -> None:
    config = mixed(tmp_path)
    settings = config.model_dump(exclude_unset=True)
    for wrong, field in (
        ({"name": "tales"}, "data.also"),
        ({"format": "probe_file"}, "data.format"),
    ):
        with pytest.raises(ConfigError, match=field):
            DataConfig.model_validate(settings | wrong)
    for wrong in ({"share": 0}, {"also": {"a/b": settings["also"]["tales"]}}):
        with pytest.raises(ValidationError):
            DataConfig.model_validate(settings | wrong)
    tiny = config.also["tales"].model_copy(update={"share": 1e-3})
    with pytest.raises(ConfigError, match=r"data\.also\.tales\.share"):
        load_data(config.model_copy(update={"also": {"tales": tiny}}))
    with pytest.raises(ConfigError, match=r"data\.also"):
        load_prompts(config)
    write(tmp_path / "tales", [])
    with pytest.raises(ConfigError, match="no rows"):
        load_data(config)
