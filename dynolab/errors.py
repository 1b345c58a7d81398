"""Every error that a user can meet, each with one clear message."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec


class DynolabError(Exception):
    """Base of all errors that Dynolab raises on purpose."""


class ConfigError(DynolabError):
    """A setting that cannot work: names the field, its value and the remedy."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field} = {value!r}: {remedy}")
        self.field, self.value, self.remedy = field, value, remedy

    def __reduce__(self) -> tuple[type, tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.remedy)


def check_settings(*checks: tuple[bool, str, object, str]) -> None:
    """Raises `ConfigError` for the first check that is wrong: (wrong, field, value, remedy)."""
    for wrong, field, value, remedy in checks:
        if wrong:
            raise ConfigError(field, value, remedy)


@contextmanager
def reading(field: str, value: object, remedy: str) -> Iterator[None]:
    """Wraps a library's reader of outside files: turns whatever it raises into a ConfigError.

    Damaged and hostile files make readers raise anything: errors of their own, KeyError,
    ImportError, RecursionError, MemoryError, and Rust panics, which are not an `Exception`.
    """
    try:
        yield
    except DynolabError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
            raise
        raise ConfigError(field, value, f"{unreadable(error)}; {remedy}") from error


@contextmanager
def under_field(field: str) -> Iterator[None]:
    """Raises the block's ConfigError under the name by which a file or another class sets it."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(field, error.value, error.remedy) from error


@contextmanager
def under_option(**options: object) -> Iterator[None]:
    """Raises the block's ConfigError under the option of the command line that gave its value.

    **Arguments:** `options`: name, without dashes → the value given, if any.
    """
    try:
        yield
    except ConfigError as error:
        given = str(error.value).partition("@")[0]  # a Hub name stands with its revision
        for name, value in options.items():
            if value is not None and str(value) == given and error.field != "FILE":
                raise ConfigError(f"--{name}", given, error.remedy) from error
        raise


def unreadable(error: BaseException) -> str:
    """States on one line why a read failed."""
    reason = " ".join(str(error).split())[:_LONGEST_REASON]
    return f"cannot be read ({type(error).__name__}{': ' if reason else ''}{reason})"


_LONGEST_REASON = 300


class StoreError(DynolabError):
    """The object store could not be reached, read or written."""


class CorruptData(StoreError):
    """Bytes read from the store do not match the committed manifest."""


class RankFailed(DynolabError):
    """A training rank ended abnormally; carries its last lines.

    `reason` is the message of the DynolabError that ended it, if any; it replaces the lines.
    """

    def __init__(
        self,
        rank: int | None,
        exit_code: int | None,
        last_lines: Sequence[str],
        reason: str | None = None,
    ) -> None:
        self.rank, self.exit_code, self.last_lines = rank, exit_code, list(last_lines)
        self.reason = reason
        super().__init__(rank, exit_code, self.last_lines, reason)

    def __str__(self) -> str:
        who = "the launcher" if self.rank is None else f"rank {self.rank}"
        if self.reason:
            return f"{self.reason} (raised by {who})"
        tail = "".join(f"\n    {line}" for line in self.last_lines)
        ending = f"; its last lines:{tail}\n" if tail else " and said nothing of an error. "
        return (
            f"{who} {_how_it_ended(self.exit_code)}{ending}Run the same command again: it goes on "
            "from the newest state that was saved"
        )


class ServiceFailed(DynolabError):
    """A server did not become ready or is gone; carries its last lines."""

    def __init__(self, name: str, last_lines: Sequence[str]) -> None:
        self.name, self.last_lines = name, list(last_lines)
        super().__init__(name, self.last_lines)

    def __str__(self) -> str:
        tail = "\n".join(f"    {line}" for line in self.last_lines) or "    (it printed nothing)"
        return f"{self.name} has failed; its last lines:\n{tail}"


class EndpointFailed(DynolabError):
    """A model's endpoint left many requests in a row unanswered; answers are kept."""

    def __init__(self, model: str, times: int, reason: str) -> None:
        super().__init__(model, times, reason)
        self.model, self.times, self.reason = model, times, reason

    def __str__(self) -> str:
        return (
            f"{self.model} left {self.times} requests in a row without an answer; the last: "
            f"{self.reason}. Run again when the endpoint is back: its answers so far are kept"
        )


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "ended without an exit code"
    if exit_code < 0:
        import signal

        try:
            return f"was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"was killed by signal {-exit_code}"
    return f"ended with exit code {exit_code}"


def to_install(extra: str) -> str:
    """How an extra is installed: Dynolab comes from its folder, not from a package index."""
    return f"in Dynolab's folder: pip install '.[{extra}]'"


def check_installed(field: str, library: str, extra: str) -> None:
    """Raises `ConfigError` without a library, and names the extra that brings it.

    A folder of its name is none: W&B writes one where it runs.
    """
    if getattr(find_spec(library), "origin", None) is None:
        raise ConfigError(field, library, f"is not installed; {to_install(extra)}")


def check_known(field: str, name: str | None, known: Collection[str]) -> None:
    """Raises `ConfigError` for a name that is not one of the known; None names nothing."""
    if name is not None and name not in known:
        raise ConfigError(field, name, f"choose one of {', '.join(known)}")


DIVERGED = "diverged.jsonl"
"""Log file of a training: the batch on which it diverged, example by example."""


class Diverged(DynolabError):
    """Training diverged; carries the ids of the batch whose loss or gradient is not finite."""

    def __init__(self, name: str, value: float, ids: Sequence[str]) -> None:
        super().__init__(
            f"{name} = {value}: training diverged on the batch of rows {', '.join(ids)}; "
            "lower optimizer.learning_rate, lengthen warmup_steps, or look at these rows "
            f"(the batch is saved in {DIVERGED})"
        )
        self.name, self.value, self.ids = name, value, list(ids)


class Pruned(DynolabError):
    """A training was ended early because its metric is worse than others' at the same step."""

    def __init__(self, stage: str, step: int, metric: str, value: float) -> None:
        super().__init__(stage, step, metric, value)
        self.stage, self.step, self.metric, self.value = stage, step, metric, value

    def __str__(self) -> str:
        return f"{self.stage} ended early at step {self.step}: {self.metric} = {self.value:.4g}"
