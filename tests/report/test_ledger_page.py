"""The figures of a ledger, from a small account worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dynolab.data.rows import Example, write_rows
from dynolab.report.inputs.ledger import Ledger, read_ledger
from dynolab.report.ledger.blocks import blocks_figure
from dynolab.report.ledger.heat_map import ledger_map_figure
from dynolab.report.ledger.page import write_ledger_page
from dynolab.report.ledger.pushers import pusher_section
from dynolab.report.ledger.sources import sources_figure
from dynolab.report.ledger.waterfall import waterfall_figure
from dynolab.results.ledger import FunctionalRow, LedgerSummary, write_table

LINES = {  # (step, response): what it did to the mean of chosen answers, and to answer b
    (0, 0): (1.0, 0.5),
    (0, 1): (-3.0, -4.0),
    (1, 0): (0.25, 2.0),
    (1, 1): (-0.5, -1.0),
}
RESPONSES = [(0, 0, "a", "chosen"), (0, 1, "a", "rejected"), (1, 0, "b", "chosen")]
RESPONSES += [(1, 1, "c", "rejected")]
STEPS = {  # before, after, predicted of either functional, step by step
    "train/chosen": [(-10.0, -12.0, -1.875), (-12.0, -12.25, -0.25)],
    "b": [(-5.0, -8.5, -3.5), (-8.5, -7.5, 1.0)],
}
NAMES = list(STEPS)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    keys = list(LINES)
    write_table(
        tmp_path,
        "lines",
        {
            "step": [step for step, _ in keys for _ in NAMES],
            "response": [response for _, response in keys for _ in NAMES],
            "functional": NAMES * len(keys),
            "nats": [value for values in LINES.values() for value in values],
        },
    )
    columns = ("step", "response", "example", "side")
    responses = dict(zip(columns, map(list, zip(*RESPONSES, strict=True)), strict=True))
    write_table(tmp_path, "responses", responses | {"tokens": [[5, 6]] * len(RESPONSES)})
    rows = [(step, name, *STEPS[name][step]) for step in (1, 0) for name in NAMES]
    steps = dict(
        zip(
            ("step", "functional", "before", "after", "predicted"),
            map(list, zip(*rows, strict=True)),
            strict=True,
        )
    )
    more = {
        "decay": [0.125, 0, 0, 0],
        "carried_in": [0] * 4,
        "weight": [1] * 4,
        "rounding": [0] * 4,
    }
    write_table(tmp_path, "steps", steps | more)
    write_table(
        tmp_path,
        "tokens",
        {
            "step": [0, 0],
            "response": [1, 1],
            "functional": ["b", "b"],
            "place": [0, 1],
            "token": ["Ġ<b>", "end"],
            "nats": [-3.5, -0.5],
        },
    )
    write_table(
        tmp_path,
        "sources",
        {
            "step": [1, 0],
            "functional": ["b", "b"],
            "lbk": [1.0, 1.0],
            "sign_delta": [0.5, -2.0],
            "kernel_bound": [0.1, 0.2],
        },
    )
    write_table(
        tmp_path,
        "blocks",
        {
            "step": [1, 1, 0, 0],
            "block": ["layers.0", "layers.0", "lm_head", "layers.0"],
            "functional": ["b"] * 4,
            "side": ["chosen", "rejected", "rejected", "rejected"],
            "nats": [2.5, -1.0, -3.5, -0.5],
        },
    )
    functionals = [
        FunctionalRow(name="train/chosen", split="train", kind="chosen", pairs=("a", "b")),
        FunctionalRow(name="b", split="train", kind="chosen", pairs=("b",)),
    ]
    write_rows(tmp_path / "functionals.jsonl", functionals)
    summary = LedgerSummary(
        steps=2, responses=4, closure=1e-9, residual_share=0.05, rounding_share=0
    )
    (tmp_path / "ledger.json").write_text(summary.model_dump_json())
    examples = [
        Example(id=name, prompt=f"what is {name}", chosen=f" {name} it is", rejected=" <i>no</i>")
        for name in "abc"
    ]
    write_rows(tmp_path / "train.jsonl", examples)
    return read_ledger(tmp_path, tmp_path)


def test_the_bars_lead_from_start_to_end(ledger: Ledger) -> None:
    figure = waterfall_figure(ledger)
    (bars,) = figure.plot.data
    assert list(bars.y) == [-10.0, 1.25, -3.5, 0.125, 0.0, -0.125, -12.25]
    start, *changes, end = bars.y
    assert start + sum(changes) == pytest.approx(end)
    assert "chosen y⁺ −2.25 = +1.25 from chosen and −3.50 from rejected" in figure.message
    (menu,) = figure.plot.layout.updatemenus
    assert [button.label for button in menu.buttons] == [
        "chosen y⁺, training",
        "b, chosen y⁺",
    ]
    assert list(menu.buttons[1].args[0]["y"][0]) == [-5.0, 2.5, -5.0, 0.0, 0.0, 0.0, -7.5]


def test_sampled_steps_count_for_those_that_were_not_drawn(ledger: Ledger) -> None:
    """Step 1 stands for three steps."""
    summary = ledger.summary.model_copy(update={"every": 3})
    drawn = replace(ledger, summary=summary, weights=np.array([1, 3]))
    (bars,) = waterfall_figure(drawn).plot.data
    whole = waterfall_figure(ledger).plot.data[0]
    lines = dict(zip(drawn.steps, drawn.by_step(drawn.accounts[0], range(3)).T, strict=True))
    assert sum(bars.y[1:3]) == pytest.approx(sum(whole.y[1:3]) + 2 * np.nansum(lines[1]))
    assert list(bars.x)[-2:] == ["steps not drawn", "end"]
    assert bars.y[0] + sum(bars.y[1:-1]) == pytest.approx(bars.y[-1])
    assert "One step of 3 was drawn" in waterfall_figure(drawn).message
    assert sources_figure(drawn) is None
    # Sums of single examples stay those of the drawn steps.
    totals = drawn.by_example(drawn.accounts[0])
    assert totals.tolist() == ledger.by_example(ledger.accounts[0]).tolist()


def test_pushers_are_summed_over_their_steps_and_sides(ledger: Ledger) -> None:
    single = ledger.accounts[1]
    down, *_, up = ledger.pushers(single)
    assert (down.example, down.total) == ("a", -3.5)
    assert (down.from_chosen, down.from_rejected, down.steps) == (0.5, -4.0, (0,))
    assert (up.example, up.total) == ("b", 2.0)


def test_the_table_names_who_pulled_an_answer_down(ledger: Ledger) -> None:
    section = pusher_section(ledger)
    assert section is not None
    shown = str(section.markup)
    assert "a (−3.5), c (−1.0), b (+2.0)" in shown
    assert "what is b" in shown and "&lt;i&gt;no&lt;/i&gt;" in shown
    assert "<code>·&lt;b&gt;</code> −3.5" in shown, "the strongest line by token"
    assert "<b>" not in shown


def test_a_ledger_without_single_answers_has_no_such_table(ledger: Ledger) -> None:
    whole = Ledger(**{**vars(ledger), "accounts": ledger.accounts[:1]})
    assert pusher_section(whole) is None


def test_bars_of_blocks_are_sums_over_the_steps(ledger: Ledger) -> None:
    figure = blocks_figure(ledger)
    assert figure is not None
    up, down = figure.plot.data
    assert list(up.x) == ["layers.0", "lm_head"]
    assert list(up.y) == [2.5, 0.0]
    assert list(down.y) == [-1.5, -3.5]
    assert "layers.0 carried most: +2.50 from chosen and −1.50 from rejected" in figure.message


def test_the_map_is_empty_where_an_example_was_in_no_batch(ledger: Ledger) -> None:
    figure = ledger_map_figure(ledger)
    (cells,) = figure.plot.data
    assert list(cells.y) == ["b", "c", "a"]
    assert [list(row) for row in cells.z] == [[None, 0.25], [None, -0.5], [-2.0, None]]


def test_accumulated_influence_stands_beside_the_path(ledger: Ledger) -> None:
    figure = sources_figure(ledger)
    assert figure is not None
    moved, influence = figure.plot.data
    assert list(moved.y) == [0.0, -3.5, -2.5]
    assert list(influence.y) == pytest.approx([0.0, -2.0, -2.0 + (0.9 * -2.0 + 0.1 * 0.5)])


def test_the_page_is_whole(ledger: Ledger, tmp_path: Path) -> None:
    write_ledger_page(ledger, "small", "name: small", (), tmp_path)
    page = (tmp_path / "ledger.html").read_text()
    assert "Who pulled these answers down" in page and "closes to" in page.lower()
    assert (tmp_path / "figures" / "ledger-map.json").exists()
