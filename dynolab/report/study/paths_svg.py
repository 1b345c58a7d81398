"""The headline figure as plain SVG: for a README, where no script runs."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable

import numpy as np

from dynolab.probes.paths import LearningPaths
from dynolab.report.figure import outline
from dynolab.report.study.learning_paths import Paths
from dynolab.report.style import objective_name
from dynolab.report.text import true_minus
from dynolab.results.study import ARGMAX
from dynolab.statistics import band

_PANEL_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _SPACE = 340, 330, 52, 46, 42, 84
_CLASSES = {"chosen": "chosen y⁺", "rejected": "rejected y⁻", ARGMAX: "y*"}
# The background is painted: that of the page around it need not follow the colour scheme.
_STYLE = """
.paper { fill: #ffffff; }
text { font: 13px system-ui, 'Segoe UI', Roboto, Arial, sans-serif; fill: #1d2733; }
.tick { font-size: 11.5px; fill: #5d6875; } .title { font-weight: 650; font-size: 14px; }
.grid { stroke: #e1e5ea; } .zero { stroke: #aab3bd; } .line { fill: none; stroke-width: 2.6; }
.band { opacity: .18; stroke: none; }
.chosen { stroke: #2468b2; } .rejected { stroke: #cf4f2c; } .argmax { stroke: #7d4bb5; }
.band.chosen, text.chosen { fill: #2468b2; stroke: none; }
.band.rejected, text.rejected { fill: #cf4f2c; stroke: none; }
.band.argmax, text.argmax { fill: #7d4bb5; stroke: none; }
@media (prefers-color-scheme: dark) { .paper { fill: #171c22; }
text { fill: #e8ecf1; } .tick { fill: #a3adb8; }
.grid { stroke: #2b333d; } .zero { stroke: #5a6571; }
.chosen { stroke: #5ea3ec; } .rejected { stroke: #f07f5c; } .argmax { stroke: #b58ae8; }
.band.chosen, text.chosen { fill: #5ea3ec; } .band.rejected, text.rejected { fill: #f07f5c; }
.band.argmax, text.argmax { fill: #b58ae8; } }
"""


def paths_svg(paths: Paths) -> str | None:
    """Δ log π of chosen, rejected and y* over each training with 95% bands, training prompts."""
    panels = [
        (objective_name(stage), own)
        for (stage, split), own in paths.items()
        if split == "train" and any(kind in own.logp for kind in _CLASSES)
    ]
    if not panels:
        return None
    width = len(panels) * (_PANEL_WIDTH + _LEFT + _SPACE)
    parts = [
        _panel(title, own, _LEFT + i * (_PANEL_WIDTH + _LEFT + _SPACE))
        for i, (title, own) in enumerate(panels)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" role="img" '
        f'aria-label="Learning paths"><style>{_STYLE}</style>'
        f'<rect class="paper" width="{width}" height="{_HEIGHT}" rx="8"/>{"".join(parts)}</svg>\n'
    )


def _panel(title: str, paths: LearningPaths, left: float) -> str:
    bands = {k: band(paths.since_start(k)) for k in _CLASSES if k in paths.logp}
    ends = np.concatenate([np.concatenate(each) for each in bands.values()])
    low, high = min(float(np.nanmin(ends)), 0.0), max(float(np.nanmax(ends)), 0.0)
    span = (high - low) or 1.0
    first, last = float(paths.steps[0]), float(paths.steps[-1])

    def x(step: float) -> float:
        return left + _PANEL_WIDTH * (step - first) / (last - first)

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / span

    marks = [
        f'<text class="title" x="{left}" y="{_TOP - 18}">{html.escape(title)}: '
        "Δ log π since step 0 (nats)</text>"
    ]
    for value in _ticks(low, high):
        css = "zero" if value == 0 else "grid"
        marks.append(
            f'<line class="{css}" x1="{left}" x2="{left + _PANEL_WIDTH}" y1="{y(value):.1f}" '
            f'y2="{y(value):.1f}"/><text class="tick" text-anchor="end" x="{left - 7}" '
            f'y="{y(value) + 4:.1f}">{_plain(value)}</text>'
        )
    marks += [
        f'<text class="tick" text-anchor="middle" x="{x(step):.1f}" y="{_HEIGHT - _BOTTOM + 20}">'
        f"{_plain(step)}</text>"
        for step in _ticks(first, last)
    ]
    marks.append(
        f'<text class="tick" text-anchor="middle" x="{left + _PANEL_WIDTH / 2}" '
        f'y="{_HEIGHT - 6}">step</text>'
    )
    for kind, (mean, lower, upper) in bands.items():
        around = zip(*outline(paths.steps, lower, upper), strict=True)
        middle = zip(paths.steps, mean, strict=True)
        marks += [
            f'<polygon class="band {kind}" points="{_points(around, x, y)}"/>',
            f'<polyline class="line {kind}" points="{_points(middle, x, y)}"/>',
        ]
    ends_at = _spread({k: y(float(m[-1])) for k, (m, _, _) in bands.items()}, 15)
    marks += [
        f'<text class="{kind}" x="{left + _PANEL_WIDTH + 6}" y="{at + 4:.1f}">'
        f"{_CLASSES[kind]}</text>"
        for kind, at in ends_at.items()
    ]
    return "".join(marks)


Scale = Callable[[float], float]


def _points(points: Iterable[tuple[float, float]], x: Scale, y: Scale) -> str:
    return " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points if np.isfinite(b))


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers within [low, high]."""
    rough = (high - low or 1.0) / 5
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * min((1, 2, 5, 10), key=lambda m: abs(m * power - rough))
    return [float(k * step) for k in range(int(np.ceil(low / step)), int(high // step) + 1)]


def _plain(value: float) -> str:
    return true_minus(f"{value:g}")


def _spread(positions: dict[str, float], apart: float) -> dict[str, float]:
    """Label heights moved down until they are `apart` pixels from each other."""
    placed: dict[str, float] = {}
    last = -np.inf
    for kind, at in sorted(positions.items(), key=lambda item: item[1]):
        last = max(at, last + apart)
        placed[kind] = float(last)
    return placed
