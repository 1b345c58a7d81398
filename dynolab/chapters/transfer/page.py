"""The page of task heads: what probing leaves to finetuning, where features go, which τ is best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dynolab.chapters.page import BANDS, Chapter, Facts, path_line, read_rows
from dynolab.chapters.transfer.claims import (
    IN,
    STRATEGY_LABELS,
    Sweep,
    Values,
    assess_transfer,
    sweeps,
)
from dynolab.chapters.transfer.rows import TransferRow
from dynolab.report.figure import Figure
from dynolab.report.lines import LinePanel, line_plot
from dynolab.report.page import Section, section, table
from dynolab.report.text import points, with_interval
from dynolab.statistics import mean_interval

_START = (
    ("Energy", "E‖e_y − p‖₂", "energy"),
    ("Direction in a class", "mean cosine", "consistency"),
    ("Not shared in a class", "share of the forces", "mismatch"),
    ("Push followed", "cosine", "followed"),
)
_FEATURES = (
    ("Distance", "‖h − h⁰‖₂", "distance"),
    ("Cosine", "cos(h, h⁰)", "cosine"),
    ("Dot product", "⟨h, h⁰⟩", "dot_product"),
    ("Norm", "‖h‖₂", "norm"),
)


def transfer(inputs: Mapping[str, Path], facts: Facts) -> Chapter:
    """Make the chapter; every input is the transfer between one pair of tasks."""
    rows = read_rows(inputs.values(), "transfer.jsonl", TransferRow)
    return Chapter(
        title="How to prepare a task head",
        lead="A network is trained on a first task; then its head alone is trained on a second one "
        "for τ epochs (probing), and then all weights. τ = 0 is plain finetuning; with a large τ "
        "the probing finishes first.",
        verdicts=assess_transfer(rows),
        content=[
            item for task in dict.fromkeys(r.task for r in rows) for item in _task(task, rows)
        ],
        source="Claims follow Ren et al., How to Prepare Your Task Head for Finetuning (arXiv "
        "2302.05779), of the linear head. Intervals are 95% t-intervals over seeds, paired by "
        "seed; the inner τ is picked for every seed on the other seeds.",
    )


def _task(task: str, rows: Sequence[TransferRow]) -> Iterator[Figure | Section]:
    own = sorted(
        (sweep for sweep in sweeps(rows) if sweep.task == task),
        key=lambda sweep: sweep.strategy != "linear",
    )
    plain, title = own[0], task.capitalize()

    def panel(
        name: str, unit: str, values: Mapping[str, Values], tickformat: str = ""
    ) -> LinePanel:
        lines = [path_line(label, range(len(of.T[0])), of.T) for label, of in values.items()]
        ticks = [str(tau) for tau in plain.taus]
        return LinePanel(name, "epochs of probing τ", unit, lines, tickformat, ticks=ticks)

    def figure(name: str, of: str, panels: Sequence[LinePanel], note: str) -> Figure:
        plot = line_plot(panels, named=STRATEGY_LABELS, height=420)
        return Figure(f"{task}-{name}", f"{title}: {of}", "By epochs of probing τ.", note, plot)

    gains = [
        panel(
            "As trained on" if test == IN else test.capitalize(),
            "Δ accuracy",
            {each.strategy: each.accuracy(test) - plain.accuracy(test)[0] for each in own},
            "+.0%",
        )
        for test in plain.tests
    ]
    yield figure(
        "accuracy",
        "which τ is best, here and elsewhere?",
        gains,
        f"{BANDS} Accuracy minus that of the smallest τ with a linear head, paired by seed, on the "
        "second task's test inputs as they are, and with changes that training inputs never have.",
    )
    for name, of, panels, note in (
        (
            "energy",
            "what probing leaves to finetuning",
            _START,
            f"{BANDS} The first three: before the first step of finetuning, on its examples. "
            "Direction: mean cosine between the forces on two features of one class; not shared: "
            "the part of the forces' squared size that the examples of a class do not have in "
            "common. Push followed: cosine between the first force on a feature and where "
            "finetuning took it.",
        ),
        (
            "features",
            "how far finetuning takes the features",
            _FEATURES,
            f"{BANDS} Over the second task's training examples, h⁰ before and h after finetuning.",
        ),
    ):
        measured = [
            panel(label, unit, {each.strategy: each.values(field) for each in own})
            for label, unit, field in panels
        ]
        yield figure(name, of, measured, note)
    yield _strategies(title, task, own)


def _strategies(title: str, task: str, own: Sequence[Sweep]) -> Section:
    """Every strategy at its best τ, picked in distribution, against the smallest τ."""
    rows = []
    for sweep in own:
        at = int(sweep.accuracy(IN).mean(1).argmax())
        best = [sweep.accuracy(test)[at] for test in (IN, "elsewhere")]
        plain = [own[0].accuracy(test)[0] for test in (IN, "elsewhere")]
        rows.append(
            (
                STRATEGY_LABELS[sweep.strategy],
                sweep.taus[at],
                *(f"{100 * values.mean():.1f}" for values in best),
                *(points(mean_interval(a - b)) for a, b in zip(best, plain, strict=True)),
                with_interval(mean_interval(sweep.values("distance")[at]), sign=False),
            )
        )
    base = f"τ = {own[0].taus[0]}"
    head = ("accuracy, %", "elsewhere, %", f"minus {base}, points", "elsewhere, points")
    return section(
        f"{task}-strategies",
        f"{title}: every strategy at its best",
        f"Each at the τ with its highest mean accuracy, against {base} with a linear head.",
        table(("strategy", "best τ", *head, "features moved"), rows, "snnnnnn"),
        note="Elsewhere: mean over the changed test sets. Differences paired by seed [95% "
        "t-interval]; the τ is picked on the same seeds, which raises all strategies alike.",
    )
