"""Functions that settings name by dotted path, of modules that the environment allows.

Their code decides results: a digest of every file of it is a part of the settings that name it.
"""

from __future__ import annotations

import ast
import importlib
import os
import sysconfig
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.machinery import all_suffixes
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from dynolab.errors import ConfigError, DynolabError

ALLOWED = "DYNOLAB_MODULES"
"""Environment variable: comma-separated modules whose functions settings may name."""

Sources = dict[str, str]
"""Path of a Python file, from the folder that its module is imported from → sha256."""

_loaded: WeakKeyDictionary[ModuleType, Sources] = WeakKeyDictionary()
"""The sources of every module as they were when this process imported it."""


def named_function(
    field: str,
    name: str,
    built_in: Mapping[str, Callable[..., Any]],
    sources: Sources | None = None,
) -> Callable[..., Any]:
    """Returns a built-in function by name, or one of an allowed module by dotted path.

    **Arguments:** `sources`: what the module's files have to be (`sources_of`), if that is fixed.

    **Raises:** `ConfigError` for an unknown one, for one outside the modules that the environment
    allows, before importing it, for a module that fails, and for other sources.
    """
    if name in built_in:
        return built_in[name]
    module, _, function = name.rpartition(".")
    allowed = _allowed()
    if module not in allowed:
        choices = f"use one of {', '.join(built_in)}, or list" if built_in else "list"
        raise ConfigError(
            field,
            name,
            f"{choices} the function's module in the environment variable {ALLOWED} "
            f"(now: {', '.join(allowed) or 'empty'})",
        )
    loaded = _load(field, name, module)
    if sources not in (None, _loaded[loaded]):
        changed = ", ".join(changed_files(sources or {}, _loaded[loaded]))
        raise ConfigError(
            field,
            name,
            f"{changed} changed since these settings were made; restore it, or run the study again "
            "(without `source_sha256`, if its file has it)",
        )
    attribute = getattr(loaded, function, None)
    if not callable(attribute) or isinstance(attribute, type):
        raise ConfigError(field, name, f"module {module} has no function {function!r}")
    chosen: Callable[..., Any] = attribute
    return chosen


@contextmanager
def running(
    field: str, name: str, failure: str = "fails", remedy: str = "correct it"
) -> Iterator[None]:
    """Runs code of a user's module: whatever it raises becomes a ConfigError, an exit, too."""
    try:
        yield
    except DynolabError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(field, name, f"{failure} ({_reason(error)}); {remedy}") from error


def _reason(error: BaseException) -> str:
    """The error on one line, with the line of the user's file where it was raised."""
    text = " ".join(str(error).split())[:300]
    reason = f"{type(error).__name__}{': ' if text else ''}{text}"
    if isinstance(error, SyntaxError):  # its text names the place
        return reason
    theirs = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith(("<", *_OTHERS)):
            theirs = f", {Path(frame.filename).name} line {frame.lineno}"
    return reason + theirs


_INSTALLED = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
_OTHERS = (*_INSTALLED, str(Path(__file__).parent))
"""Folders that hold no user's file."""


def sources_of(name: str, built_in: Collection[str] = ()) -> Sources | None:
    """Digests of the files of a function's module, and of what these import from their folder.

    They are those of the time when this process imported the module, which this does if need be.
    None for a built-in function, and for one that `named_function` refuses.
    """
    module = name.rpartition(".")[0]
    if name in built_in or module not in _allowed():
        return None
    with suppress(ConfigError):
        return _loaded[_load("", name, module)]
    return None


def changed_files(before: Sources, after: Sources) -> list[str]:
    """Files that only one of the two has, or whose content differs."""
    return sorted(
        file for file in before.keys() | after.keys() if before.get(file) != after.get(file)
    )


def _allowed() -> list[str]:
    return [entry.strip() for entry in os.environ.get(ALLOWED, "").split(",") if entry.strip()]


def _load(field: str, name: str, module: str) -> ModuleType:
    """Imports a module, and notes its sources as they were just before that."""
    failure = f"module {module} cannot be imported"
    with running(field, name, failure, "correct it, or set PYTHONPATH to its folder"):
        spec = find_spec(module)
        origin = None if spec is None or not spec.has_location else spec.origin
        sources = None if origin is None else _sources(module, Path(origin))
        loaded = importlib.import_module(module)
        _loaded.setdefault(loaded, sources or {})
    return loaded


def _sources(module: str, file: Path) -> Sources:
    """Digests of a module's file and of the files in its folder that it imports, and so on.

    Dynolab's own modules are left out, and of a module among installed packages all other packages.
    """
    parts = module.split(".")
    root = file.parents[len(parts) if file.name == "__init__.py" else len(parts) - 1]
    installed = str(root) in _INSTALLED
    sources: Sources = {}
    names = [module]
    while names:
        name = names.pop()
        top = name.partition(".")[0]
        if top == __package__ or (installed and top != parts[0]):
            continue
        for path in _files(root, name):
            shown = path.relative_to(root).as_posix()
            if shown not in sources:
                content = path.read_bytes()
                sources[shown] = sha256(content).hexdigest()
                names += _imports(content, _package(path.relative_to(root)))
    return dict(sorted(sources.items()))


def _files(root: Path, name: str) -> Iterator[Path]:
    """The files that importing a dotted name from a folder runs: its packages' and its own."""
    place = root
    for part in name.split("."):
        place /= part
        possible = [place / "__init__.py", *(Path(f"{place}{end}") for end in all_suffixes())]
        yield from (file for file in possible if file.is_file())


def _package(file: Path) -> str:
    """The package from which a file's relative imports start."""
    return ".".join(file.parent.parts)


def _imports(code: bytes, package: str) -> Iterator[str]:
    """Dotted names that Python code may import; none of what is no Python."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # more dots than the package has parts
                name = resolve_name("." * node.level + (node.module or ""), package)
                yield name
                # What is imported from a package may be a module of it.
                yield from (f"{name}.{alias.name}" for alias in node.names)
