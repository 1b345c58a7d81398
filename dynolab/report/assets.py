"""The page's style sheet and its script."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --muted: #5d6875; --line: #e1e5ea;
  --paper: #ffffff; --soft: #f5f6f8; --accent: #2468b2; --yes: #0f7f74; --no: #b03a1c;
  --maybe: #8a6a00; --none: #6b7480; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e8ecf1; --muted: #a3adb8;
  --line: #2b333d; --paper: #171c22; --soft: #1f262e; --accent: #5ea3ec; --yes: #2fb5a6;
  --no: #f07f5c; --maybe: #e0c257; --none: #97a1ac; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; }
main, header { max-width: 1400px; margin: 0 auto; padding: 0 32px; }
header { padding-top: 40px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 21px; line-height: 1.3; margin: 0 0 6px; letter-spacing: -0.005em; }
p { margin: 0 0 10px; max-width: 88ch; }
.lead { color: var(--muted); }
.message { font-size: 17px; }
.note { color: var(--muted); font-size: 14px; }
section { padding: 26px 0 18px; border-top: 1px solid var(--line); margin-top: 18px; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: 12px; margin: 22px 0 8px; }
.tile { background: var(--soft); border-radius: 10px; padding: 14px 16px; min-width: 0; }
.tile b { display: block; font-size: 27px; line-height: 1.2; font-weight: 650;
  font-variant-numeric: tabular-nums; }
.tile span { display: block; color: var(--muted); font-size: 13px; line-height: 1.4; }
.tile .what { color: var(--ink); font-weight: 600; font-size: 14px; margin-bottom: 2px; }
section { overflow-x: auto; }
.plot { width: 100%; min-width: 860px; margin: 10px 0 6px; }
.plot text { font-variant-numeric: tabular-nums; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px; margin: 10px 0; }
th { text-align: left; color: var(--muted); font-weight: 600; font-size: 13px; }
th, td { padding: 7px 14px 7px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; padding-right: 22px; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
td div + div { margin-top: 3px; }
.num { font-variant-numeric: tabular-nums; white-space: nowrap; }
.quiet { color: var(--muted); }
.verdict { font-weight: 650; white-space: nowrap; }
.appears { color: var(--yes); } .does-not { color: var(--no); }
.unclear { color: var(--maybe); } .not-measured { color: var(--none); font-weight: 500; }
code, pre { font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; }
pre { background: var(--soft); padding: 14px 16px; border-radius: 10px; overflow-x: auto; }
a { color: var(--accent); }
summary { cursor: pointer; font-size: 21px; font-weight: 700; }
footer { color: var(--muted); font-size: 13px; padding: 20px 0 40px; }
/* Plotly paints a chosen button in a fixed light blue. */
.updatemenu-item-rect[style*="rgb(244, 250, 255)"] { fill: var(--soft) !important;
  stroke: var(--muted) !important; }
@media (max-width: 760px) { .tiles { grid-template-columns: repeat(2, 1fr); }
  main, header { padding: 0 16px; } }
@page { size: A4; margin: 14mm; }
@media print {
  body { font-size: 11pt; }
  header { padding-top: 0; }
  main, header { padding: 0; max-width: none; }
  .plot { width: 1100px; zoom: 0.62; }
  section { overflow: visible; }
  section, .tile, tr { break-inside: avoid; }
  .modebar, .updatemenu-container { display: none !important; }
  h2, .message { break-after: avoid; }
  .tile { border: 1px solid var(--line); }
  table { font-size: 9.5pt; }
  pre { white-space: pre-wrap; }
}
"""

# Figures are made in light colours; where the reader's screen is dark, each is replaced by its
# dark partner, also in what the reader has since chosen in the figure. Paper is light, and there
# figures are drawn as on a screen and made smaller.
SCRIPT = """
"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const toDark = read("dark-colors");
const toLight = Object.fromEntries(Object.entries(toDark).map(([light, dark]) => [dark, light]));
const darkScreen = window.matchMedia("screen and (prefers-color-scheme: dark)");
const config = { responsive: true, displaylogo: false, displayModeBar: "hover",
  showSendToCloud: false, plotlyServerURL: "",
  modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
  toImageButtonOptions: { format: "svg" } };
function swap(value, colors) {
  if (typeof value === "string") return Object.hasOwn(colors, value) ? colors[value] : value;
  if (Array.isArray(value)) return value.map((item) => swap(item, colors));
  if (value === null || typeof value !== "object" || ArrayBuffer.isView(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, swap(item, colors)]));
}
const PRINT_WIDTH = 1100;
const plots = Array.from(document.querySelectorAll(".plot"));
function repaint(dark, width) {
  for (const plot of plots) {
    const colors = dark ? toDark : toLight;
    const layout = { ...swap(plot.layout, colors), width: width, autosize: width === undefined };
    Plotly.react(plot, swap(plot.data, colors), layout, config);
  }
}
for (const plot of plots) {
  const figure = read("data-" + plot.id);
  const shown = darkScreen.matches ? swap(figure, toDark) : figure;
  Plotly.newPlot(plot, shown.data, shown.layout, config);
}
darkScreen.addEventListener("change", () => repaint(darkScreen.matches));
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((details) => { details.open = true; });
  repaint(false, PRINT_WIDTH);
});
window.addEventListener("afterprint", () => repaint(darkScreen.matches));
"""
