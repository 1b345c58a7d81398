"""Several sources of pairs: shares, names, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dynolab.data.rows import rows_by_source
from dynolab.data.sources.load import DataConfig, load_data, load_prompts, resolve_data
from dynolab.errors import ConfigError
from flows.parameters import load_parameters
from flows.probes import ProbesParameters
from tests.data.rows_files import write


def pairs(name: str, count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": f"{name} {n}", "chosen": f"good {name} {n}", "rejected": f"bad {name} {n}"}
        for n in range(count)
    ]


def mixed(tmp_path: Path, **settings: Any) -> DataConfig:
    places = {}
    for name, count in (("news", 30), ("tales", 50)):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        places[name] = str(write(folder, pairs(name, count)))
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
    write(tmp_path / "tales", pairs("tales", 49))
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
