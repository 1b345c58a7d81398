from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from dynolab.report.forces.matrices import pair_matrix_figure
from dynolab.report.forces.page import block_figure, write_force_page
from dynolab.report.forces.token_map import token_map_choice_figure
from dynolab.report.forces.token_map_plot import token_map_plot
from dynolab.results.study import TokenMap
from tests.report.forces import analysis, token_map
from tests.report.parsed import CANARY, check_figures, obeys_no_text, words_of


@pytest.mark.parametrize("rejected", [True, False])
@pytest.mark.parametrize("labels", [("base", "dpo"), ("only",)])
def test_every_figure_is_drawn_and_no_text_becomes_markup(
    rejected: bool, labels: tuple[str, ...], tmp_path: Path
) -> None:
    write_force_page(analysis(CANARY, rejected, labels), tmp_path)
    obeys_no_text(tmp_path, "forces.html")
    assert check_figures(tmp_path, "forces.html") == 6 + len(labels)
    assert "nan" not in words_of(tmp_path / "forces.html", " ").split()


def test_the_matrix_holds_the_totals_in_the_order_of_its_names() -> None:
    inputs = analysis()
    figure = pair_matrix_figure(inputs.checkpoints)
    cells = figure.plot.data[1]
    names = figure.plot.layout.yaxis2.ticktext
    for row in inputs.checkpoints[1].totals:
        mark = "°" if row.split == "heldout" else ""
        line = list(names).index(f"{row.kind} {row.observed_id}{mark}")
        assert cells.z[line][int(row.updating_id[-1])] == pytest.approx(row.total)
    whole, up, down = (
        button.args[0]["z"][1] for button in figure.plot.layout.updatemenus[0].buttons
    )
    assert whole[0][0] == pytest.approx(up[0][0] + down[0][0])


def test_a_cell_knows_its_map_among_all() -> None:
    checkpoints = analysis().checkpoints
    maps = [token_map for checkpoint in checkpoints for token_map in checkpoint.token_maps]
    figure = pair_matrix_figure(checkpoints)
    known = [
        place
        for cells in figure.plot.data[: len(checkpoints)]
        for line in cells.customdata
        for place in line
        if place is not None
    ]
    assert sorted(known) == list(range(len(maps))) and maps
    for cells, dots in zip(figure.plot.data[:2], figure.plot.data[2:], strict=True):
        assert all(cells.customdata[y][x] is not None for x, y in zip(dots.x, dots.y, strict=True))


def test_every_checkpoint_shows_all_its_blocks() -> None:
    first, last = analysis().checkpoints
    adapted = tuple(part for part in last.facts.blocks if part.block != "head")
    last = dataclasses.replace(last, facts=last.facts.model_copy(update={"blocks": adapted}))
    bars = block_figure([first, last]).plot.select_traces("bar")
    assert [dict(zip(own.x, own.y, strict=True)) for own in bars] == [
        {"head": 0.8, "mlp": 0.2},
        {"mlp": 0.2},
    ]


def test_a_choice_shows_one_map_with_its_own_axes() -> None:
    maps = [("a", token_map("", True)), ("b", token_map("", False))]
    figure = token_map_choice_figure(maps)
    first, second = figure.plot.layout.updatemenus[0].buttons
    shown, others = (button.args[0]["visible"] for button in (first, second))
    assert (sum(shown), sum(others)) == (7, 5)
    assert [not visible for visible in others] == shown
    assert [bool(trace.visible) for trace in figure.plot.data] == shown
    assert [len(button.args[1]["xaxis.tickvals"]) for button in (first, second)] == [4, 2]
    assert second.args[1]["shapes"] == []
    assert token_map_choice_figure([]) is None


def large_map(rows: int, chosen: int, rejected: int = 0) -> TokenMap:
    """A map of so many tokens, with random forces."""
    force = np.random.default_rng(0).normal(size=(rows, chosen + rejected))
    tokens = {
        "observed_tokens": ["“token”"] * rows,
        "chosen_tokens": ["b"] * chosen,
        "rejected_tokens": ["c"] * rejected,
    }
    return token_map("", True).model_copy(update=tokens | {"force": force.tolist()})


@pytest.mark.parametrize(("name", "size"), [("xaxis", (1, 200)), ("yaxis", (200, 1))])
def test_of_many_tokens_the_largest_sums_are_named_with_room_between_them(
    name: str, size: tuple[int, int]
) -> None:
    drawn = large_map(*size)
    layout = token_map_plot(drawn).layout
    places = layout[name].tickvals
    assert len(places) == len(layout[name].ticktext) <= 40
    assert np.abs(drawn.force).argmax() in places
    assert np.diff(sorted(places)).min() >= 200 / 40
    assert layout.height < 1400


def test_a_map_of_very_many_cells_stays_small() -> None:
    """450 tokens by 325, as of two long answers, in a page of at most ten megabytes."""
    assert len(token_map_plot(large_map(450, 75, 250)).to_json()) < 1.5e6
    cells, *_ = token_map_plot(large_map(2, 1)).data
    assert "“" in cells.text[0][0], "a small one says its tokens"


def test_sums_of_many_tokens_are_areas_instead_of_bars() -> None:
    for drawn, kind in ((large_map(300, 75, 175), "scatter"), (token_map("", True), "bar")):
        force, split = np.array(drawn.force), len(drawn.chosen_tokens)
        chosen, rejected, plus, minus, total = token_map_plot(drawn).data[2:]
        assert {trace.type for trace in (chosen, rejected, plus, minus)} == {kind}
        assert np.r_[chosen.y, rejected.y] == pytest.approx(force.sum(0))
        assert plus.x == pytest.approx(force[:, :split].sum(1))
        assert minus.x == pytest.approx(force[:, split:].sum(1))
        assert total.x == pytest.approx(force.sum(1))


def test_shares_of_no_force_are_shown_as_none(tmp_path: Path) -> None:
    inputs = analysis()
    facts = inputs.checkpoints[0].facts
    nan = float("nan")
    blocks = [part.model_copy(update={"share": nan, "projection": nan}) for part in facts.blocks]
    undefined = facts.model_copy(update={"blocks": tuple(blocks), "sum_error": nan})
    again = type(facts).model_validate_json(undefined.model_dump_json())
    assert again.sum_error != again.sum_error
    checkpoint = dataclasses.replace(inputs.checkpoints[0], facts=again)
    write_force_page(dataclasses.replace(inputs, checkpoints=(checkpoint,)), tmp_path)
    assert (tmp_path / "forces.html").exists()
