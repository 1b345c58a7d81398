"""The library alone: its wheel in an environment of its own, without the checkout beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import dynolab
from dynolab.objectives import DPOConfig
from dynolab.training.config import TrainConfig
from tasks.training import PREFERENCE
from tests.flows.analysed import PLAIN, Analysed
from tests.flows.lab import ROOT

PLATFORM = ("flows", "tasks", "models", "deploy")
PROJECT = ("pyproject.toml", "README.md", "LICENSE")
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*/*.md"))]
PROGRAMS = {
    f"{page.stem}_{number}": code
    for page in TEXTS
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
}
"""The Python of README and manual, by name."""
NOTEBOOKS = {
    notebook.stem: "\n".join(
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text())["cells"]
        if cell["cell_type"] == "code"
    )
    for notebook in sorted((ROOT / "examples").glob("*.ipynb"))
}
"""The cells of each notebook, which are Python alone, as a script."""
OFFLINE = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
# Reading the types of torch and transformers takes a minute.
TYPING = """
[mypy]
strict = True
follow_imports = skip
ignore_missing_imports = True
[mypy-dynolab.*,jaxtyping.*,pydantic.*,pydantic_core.*]
follow_imports = normal
"""
RIGHT_CALLS = (
    "dynolab.build_objective(dynolab.DPOConfig(beta=0.5))",
    "dynolab.AlarmConfig(rise=3)",
    "dynolab.build_world(dynolab.WorldConfig(seed=1)).probes[0].kind.upper()",
    "dynolab.load_data(dynolab.DataConfig(source='world')).pairs[0].prompt.upper()",
)
WRONG_CALLS = {
    "dynolab.build_objective('dpo')": "arg-type",
    "dynolab.DPOConfig(beta='large')": "arg-type",
    "dynolab.DPOConfig(slope=1)": "call-arg",
    "dynolab.forse_map": "attr-defined",
}
"""By the kind of error that a type checker finds."""
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
DEPENDENCIES = [folder for folder in sys.path if Path(folder).name == "site-packages"]


def run(*command: str | Path, cwd: Path, ends_with: int = 0, **variables: str) -> str:
    """What a command prints, with its errors."""
    process = subprocess.run(
        command,
        cwd=cwd,
        env=ENVIRONMENT | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert process.returncode == ends_with, process.stdout
    return process.stdout


def environment(folder: Path, *install: str | Path) -> Path:
    """The programs of a new environment that sees what is installed here, and installs one more."""
    venv.create(folder)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text("\n".join(DEPENDENCIES))
    pip = ("-m", "pip", "install", "--ignore-installed", *OFFLINE)
    run(folder / "bin" / "python", *pip, *install, cwd=folder)
    return folder / "bin"


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the library and the platform, so that building leaves nothing in the real one."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in PROJECT:
        shutil.copy(ROOT / name, folder)
    for room in ("dynolab", *PLATFORM):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / room, folder / room, ignore=ignored)
    return folder


@pytest.fixture(scope="session")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", *OFFLINE, checkout, cwd=folder)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="session")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel."""
    return environment(tmp_path_factory.mktemp("installed"), wheel)


def written(programs: Mapping[str, str], folder: Path) -> list[Path]:
    """The programs as files."""
    files = [folder / f"{name}.py" for name in programs]
    for file, code in zip(files, programs.values(), strict=True):
        file.write_text(code)
    return files


def test_the_wheel_holds_the_whole_library_and_nothing_else(checkout: Path, wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    metadata = f"dynolab-{dynolab.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"dynolab", metadata}
    files = [path for path in (checkout / "dynolab").rglob("*") if path.is_file()]
    library = [path for path in files if path.suffix != ".md"]  # for those who build it
    assert {str(path.relative_to(checkout)) for path in library} == {
        name for name in names if name.startswith("dynolab/")
    }
    assert "dynolab/py.typed" in names


def test_an_import_loads_nothing_and_finds_no_platform(programs: Path, tmp_path: Path) -> None:
    code = (
        "import sys, importlib.util, dynolab;"
        "print(dynolab.__file__);"
        f"print([name for name in {PLATFORM} if importlib.util.find_spec(name)]);"
        "print({'torch', 'numpy', 'transformers', 'pydantic'} & sys.modules.keys())"
    )
    file, *others = run(programs / "python", "-c", code, cwd=tmp_path).splitlines()
    assert Path(file).is_relative_to(programs.parent)
    assert others == ["[]", "set()"]


def test_every_public_name_is_there() -> None:
    assert {name for name in dynolab.__all__ if not hasattr(dynolab, name)} == set()
    assert set(dynolab.__all__) <= set(dir(dynolab))
    with pytest.raises(AttributeError, match="module 'dynolab' has no attribute 'forse_map'"):
        dynolab.forse_map  # type: ignore[attr-defined]  # noqa: B018


def test_the_examples_run(programs: Path, tmp_path: Path) -> None:
    """Of README, manual and notebooks, in one process, which imports torch and transformers once.

    Readers have a folder `model` and the file `pairs.jsonl`, and in a home of their own the newest
    study, which a notebook opens.
    """
    analysed = Analysed(tmp_path / "home")
    settings = TrainConfig(
        objective=DPOConfig(), engine=PLAIN, steps=2, batch_size=4, record_steps=(1,)
    )
    analysed.run(PREFERENCE, settings, data=analysed.data, model=analysed.sft)
    home = {"DYNOLAB_HOME": str(analysed.platform.settings.home)}
    (tmp_path / "model").symlink_to(analysed.folder(analysed.sft) / "model")
    pairs = dynolab.load_data(dynolab.DataConfig()).pairs[:40]
    dynolab.write_rows(tmp_path / "pairs.jsonl", pairs)
    examples = written(PROGRAMS | NOTEBOOKS, tmp_path)
    code = (
        "import runpy, sys; [(runpy.run_path(file), print('ran', file)) for file in sys.argv[1:]]"
    )
    printed = run(programs / "python", "-c", code, *examples, cwd=tmp_path, **home)
    parts = re.split(r"^ran \S+$", printed, flags=re.MULTILINE)
    assert len(parts) == len(examples) + 1
    assert all(part.strip() for part in parts[:-1]), "every example shows something"


def test_the_public_face_is_typed(programs: Path, tmp_path: Path) -> None:
    """A type checker sees a type behind every public name, and what is wrong with a call."""
    (tmp_path / "mypy.ini").write_text(TYPING)
    face = tmp_path / "face.py"
    lines = ["import dynolab", *RIGHT_CALLS, *WRONG_CALLS]
    lines += [f"reveal_type(dynolab.{name})" for name in dynolab.__all__]
    face.write_text("\n".join(lines))
    checker = (sys.executable, "-m", "mypy", "--python-executable", programs / "python")
    printed = run(*checker, face, *written(PROGRAMS, tmp_path), cwd=tmp_path, ends_with=1)
    errors = re.findall(r": error: .*\[([\w-]+)\]$", printed, re.MULTILINE)
    assert errors == list(WRONG_CALLS.values()), printed
    types = re.findall(r'Revealed type is "(.*)"$', printed, re.MULTILINE)
    untyped = {name for name, kind in zip(dynolab.__all__, types, strict=True) if kind == "Any"}
    # What torch decorates is known where torch is.
    assert all(hasattr(getattr(dynolab, name), "__wrapped__") for name in untyped)


def test_the_command_of_the_wheel_says_where_the_platform_is(
    programs: Path, tmp_path: Path
) -> None:
    printed = run(programs / "dynolab", "study", cwd=tmp_path, ends_with=1)
    assert printed.startswith("dynolab: the library is installed here, without the platform")


def test_an_editable_install_of_a_checkout_brings_the_platform(
    checkout: Path, tmp_path: Path
) -> None:
    programs = environment(tmp_path / "editable", "--editable", checkout)
    assert "reconcile" in run(programs / "dynolab", "--help", cwd=tmp_path)
    code = "import flows, tasks, models; print(flows.__path__[0])"
    assert run(programs / "python", "-c", code, cwd=tmp_path).strip() == str(checkout / "flows")
