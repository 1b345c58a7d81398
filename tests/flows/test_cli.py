"""The command line: groups, files, settings, the line of JSON, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

import dynolab
from flows import cli
from flows.registry import FLOWS
from tests.flows.conftest import Command
from tests.flows.lab import SMALL


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in a folder that is no checkout."""
    monkeypatch.chdir(tmp_path)


def test_every_command_is_in_a_group() -> None:
    commands = get_command(cli.app).commands  # type: ignore[attr-defined]
    assert {name for name in FLOWS if name != "train"} <= commands.keys()
    assert all(command.rich_help_panel or command.hidden for command in commands.values())


def test_the_version(command: Command) -> None:
    assert command("--version").out == f"dynolab {dynolab.__version__}\n"


@pytest.mark.parametrize("file", [["mine.yaml"], ["--config", "mine.yaml"]])
def test_settings_are_shown_with_their_defaults(
    file: list[str], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    shown = yaml.safe_load(command("study", *file, "--set", "sft.steps=7", "--show").out)
    assert (shown["name"], shown["sft"]["steps"], shown["preference"]["steps"]) == ("mine", 7, 60)


def test_two_files_are_refused_with_a_line_of_json(command: Command) -> None:
    printed = command("study", "a.yaml", "--config", "b.yaml", "--json", code=2).out
    assert json.loads(printed)["error"].startswith("--config = 'b.yaml': a.yaml is given, too")


def test_the_plan_of_a_sweep_lists_its_trials(command: Command) -> None:
    trials = json.loads(command("sweep", "--plan", "--json").out.splitlines()[-1])["trials"]
    assert len(trials) == 8
    assert trials[0]["settings"] == {"preference.objective.beta": 0.01}
    assert trials[0]["to_run"] == ["data", "base", "sft", "preference"]
    drawn = command("sweep", "--plan", "--set", "sampler=random", "--set", "trials=3")
    assert "3 trials, drawn by random" in drawn.out


def test_the_doctor_ends_with_a_line_of_json(command: Command) -> None:
    *lines, last = command("doctor", "--json").out.splitlines()
    findings = json.loads(last)["findings"]
    assert [finding["name"] for finding in findings] == [line.split()[1] for line in lines]


def test_a_plan_says_what_stages_take(command: Command) -> None:
    printed = command("study", "--plan", "--machine", "h100x8", "--json").out
    assert "h100x8 (8 x 75.2 GB, 2048.0 GB of main memory" in printed
    steps = json.loads(printed.splitlines()[-1])["stages"]
    assert (steps[0]["step"], steps[-1]["step"]) == ("data", "report")
    assert {(step["state"], step["key"]) for step in steps[1:]} == {("to run", None)}
    stages = {step["step"]: step for step in steps}
    cost = stages["preference"]["cost"]
    assert cost["ranks"] == 2
    assert cost["rank_bytes"] > 4 * cost["parameters"]
    assert cost["hours"] > 0 and cost["written"] > 4 * cost["parameters"]
    assert stages["foresight"]["cost"] is None


def test_a_plan_refuses_what_does_not_fit(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no network")

    for query in ("model_info", "dataset_info"):
        monkeypatch.setattr(f"huggingface_hub.HfApi.{query}", unreachable)
    planned = ("study", "hh_pythia2.8b.yaml", "--plan", "--json", "--machine", "a100")
    printed = command(*planned, code=2).out
    assert "too large" in printed
    error = json.loads(printed.splitlines()[-1])["error"]
    assert error.startswith("sft = ")
    assert "runs 8 ranks, and a100 has 1 GPU; set sft.engine.ranks=1" in error


@pytest.mark.parametrize("arguments", [["--machine", "h100"], ["--plan", "--machine", "mine"]])
def test_a_machine_is_for_plans_and_has_a_name(command: Command, arguments: list[str]) -> None:
    assert "--machine" in json.loads(command("study", *arguments, "--json", code=2).out)["error"]


Refused = Callable[..., str]


@pytest.fixture
def refused(command: Command, tmp_path: Path) -> Iterator[Refused]:
    """Runs the command to its refusal; gives the message."""

    def run(*arguments: str) -> str:
        said, complained = command(*arguments, code=2)
        assert said == ""
        assert "Traceback" not in complained
        assert complained.startswith("error ")
        assert complained.count("\n") == 1, complained
        return complained

    yield run
    assert not list(tmp_path.glob("home/store/stages/*"))
    assert not list(tmp_path.glob("home/scratch/*"))


def study(*changes: str, config: Path = SMALL) -> list[str]:
    options = [word for change in changes for word in ("--set", change)]
    return ["study", "--config", str(config), *options]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "preference.objective.name=dpoo",
            "preference.objective.name = 'dpoo': choose one of 'sft', 'dpo', 'robust_dpo', ",
        ),
        (
            "preference.objective.betta=1",
            "preference.objective.betta = 1: there is no such setting; did you mean "
            "preference.objective.beta",
        ),
        ("preference.objective.beta=-1", "preference.objective.beta = -1: Input should be greater"),
        ("sft.stepz=3", "sft.stepz = 3: there is no such setting"),
        ("sft.steps=many", "sft.steps = 'many': Input should be a valid integer"),
        ("sft.record_steps=[6]", "sft.record_steps = [6]: must lie in 0..5"),
        (
            "preference.batch_size=5",
            "preference.batch_size = 5: must be a multiple of engine.ranks = 2",
        ),
        (
            "base.training.engine.ranks=2",
            "base.training.engine.ranks = 2: the plain engine runs in one process; set 1",
        ),
        ("data.world.entities=2", "data.world.entities = 2: the pairs and 12 spare facts need"),
        ("data.source=file", "data.path = None: set it for source: file"),
        (
            "data={source: file, path: pairs.jsonl}",
            "base.source = 'builtin': the built-in model has only the vocabulary of the built-in "
            "world",
        ),
        ("preference.seed=7", "preference.seed = 7: a study has one seed, 0; set `seed`"),
        ("nonsense", "--set = 'nonsense': write it as key=value"),
        ("=3", "--set = '=3': write it as key=value"),
        ("sft..steps=3", "--set = 'sft..steps=3': write it as key=value"),
        ("sft.steps=[", "--set = 'sft.steps=[': cannot be read as YAML"),
        ("seed.of.all=3", "--set = 'seed.of.all=3': seed holds a value, not settings"),
        ("name=2024-13-45", "cannot be read as YAML (month must be in 1..12"),
        ("data.path=${DYNOLAB_NOWHERE}", "set the environment variable DYNOLAB_NOWHERE"),
    ],
)
def test_settings(change: str, message: str, refused: Refused) -> None:
    assert message in refused(*study(change))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"sft: {steps: 3\nname: [", "cannot be read as YAML (line 2"),
        (b"\xff\xfe\x00", "cannot be read as YAML"),
        (b"[" * 3000, "cannot be read as YAML"),
        (b"- sft\n", "must hold settings by name"),
        (b"seed: 0x_\n", "cannot be read as YAML"),
    ],
    ids=["syntax", "no text", "too deep", "a list", "no number"],
)
def test_study_files(content: bytes, message: str, tmp_path: Path, refused: Refused) -> None:
    file = tmp_path / "study.yaml"
    file.write_bytes(content)
    assert message in refused(*study(config=file))


def test_study_files_that_are_not_there(tmp_path: Path, refused: Refused) -> None:
    assert "no such file" in refused(*study(config=tmp_path / "study.yaml")).lower()
    assert "directory" in refused(*study(config=tmp_path)).lower()


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://admin:hidden@127.0.0.1/sweeps",
        "postgresql://127.0.0.1/sweeps?user=admin&password=hidden",
        "https://127.0.0.1/sweeps?token=hidden",
    ],
)
def test_a_study_file_cannot_bring_a_login_into_parameters(
    address: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNOLAB_SWEEPS", address)
    message = refused(*study("project=${DYNOLAB_SWEEPS}"))
    assert "project = '${DYNOLAB_SWEEPS}': holds a login" in message and "hidden" not in message


@pytest.mark.parametrize("tag", ["python/object/apply:os.system", "python/object/new:os.system"])
def test_a_study_file_runs_nothing(tag: str, tmp_path: Path, refused: Refused) -> None:
    file, code = tmp_path / "study.yaml", f"!!{tag} ['touch {tmp_path}/ran']"
    file.write_text(f"name: {code}\n")
    for arguments in (study(config=file), study(f"name={code}")):
        assert "cannot be read as YAML" in refused(*arguments)
        assert not (tmp_path / "ran").exists()


def test_sources(tmp_path: Path, refused: Refused) -> None:
    data = f"data={{source: file, path: {tmp_path}/none.jsonl}}"
    missing = refused(*study(data, f"base.source={tmp_path}"))
    assert "none.jsonl': no such file; give JSON" in missing
    missing = refused(*study(f"base.source={tmp_path}/none"))
    assert f"base.source = '{tmp_path}/none': neither an existing folder" in missing


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DYNOLAB_STORE", "file://{folder}/file/store", "use a folder that this user can write to"),
        ("DYNOLAB_STORE", "gopher://store", "DYNOLAB_STORE = 'gopher://store'"),
        ("MLFLOW_TRACKING_URI", "somewhere", "= 'somewhere': give an address"),
    ],
)
def test_stores(
    name: str,
    value: str,
    message: str,
    tmp_path: Path,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(name, value.format(folder=tmp_path))
    answer = refused(*study())
    assert f"{name} = " in answer and message in answer
