// Figures come in light colours. On a dark screen each colour is replaced by its dark counterpart;
// what the reader has selected in a figure is kept. Prints use the light colours and a fixed width.
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
