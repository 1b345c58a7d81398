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
const drawn = new Set();
function draw(plot, dark, width) {
  const colors = dark ? toDark : toLight;
  const figure = drawn.has(plot) ? plot : read("data-" + plot.id);
  const layout = { ...swap(figure.layout, colors), width: width, autosize: width === undefined };
  Plotly.react(plot, swap(figure.data, colors), layout, config);
  if (!drawn.has(plot)) plot.on("plotly_click", showMap);
  drawn.add(plot);
}
// A cell's number is the place of its map in the menu of maps.
function showMap(event) {
  const maps = document.getElementById("plot-token-maps");
  const place = event.points[0].customdata;
  if (event.points[0].data.type !== "heatmap" || !maps || !Number.isInteger(place)) return;
  if (!drawn.has(maps)) draw(maps, darkScreen.matches);
  Plotly.update(maps, ...maps.layout.updatemenus[0].buttons[place].args);
  maps.closest("section").scrollIntoView();
}
// A figure is drawn when it comes near the screen, and those outside closed folds when the browser
// has nothing else to do, so that the page keeps its heights and a picture of it has no gaps.
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target, darkScreen.matches);
  }
}, { rootMargin: "600px" });
plots.forEach((plot) => near.observe(plot));
const whenIdle = window.requestIdleCallback || ((work) => setTimeout(work, 200));
function drawNext() {
  const plot = plots.find((each) => !drawn.has(each) && !each.closest("details:not([open])"));
  if (!plot) return;
  draw(plot, darkScreen.matches);
  whenIdle(drawNext);
}
window.addEventListener("load", () => whenIdle(drawNext));
const repaint = () => drawn.forEach((plot) => draw(plot, darkScreen.matches));
darkScreen.addEventListener("change", repaint);
window.addEventListener("beforeprint", () => {
  document.querySelectorAll(".fold").forEach((fold) => { fold.open = true; });
  plots.forEach((plot) => draw(plot, false, PRINT_WIDTH));
});
window.addEventListener("afterprint", repaint);

// Contents are open where there is room beside the page, and close after a choice where not. A link
// into a fold opens it.
const contents = document.querySelector(".contents details");
const roomy = window.matchMedia("(min-width: 1160px)");
function reveal() {
  let place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const target = place;
  for (; place; place = place.parentElement) if (place.tagName === "DETAILS") place.open = true;
  if (target) target.scrollIntoView();
}
if (contents) {
  contents.open = roomy.matches;
  roomy.addEventListener("change", () => { contents.open = roomy.matches; });
  contents.addEventListener("click", (event) => {
    if (event.target.closest("a") && !roomy.matches) contents.open = false;
  });
  window.addEventListener("hashchange", reveal);
  if (location.hash) reveal();
}
// What scrolls is reached by Tab, under its section's name; what fits is no stop.
const SCROLLED = ".table, .drawn, blockquote";
const measured = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const box = target.closest(SCROLLED);
    if (box.scrollWidth <= box.clientWidth && box.scrollHeight <= box.clientHeight) {
      box.removeAttribute("tabindex");
      continue;
    }
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    const heading = box.closest("section, details")?.querySelector("h2, summary");
    if (heading) box.setAttribute("aria-label", heading.textContent);
  }
});
for (const box of document.querySelectorAll(SCROLLED)) {
  measured.observe(box);
  if (box.firstElementChild) measured.observe(box.firstElementChild);
}
for (const command of document.querySelectorAll("pre.command")) {
  const button = document.createElement("button");
  button.className = "copy";
  button.textContent = "copy";
  const text = command.textContent;
  button.addEventListener("click", () => {
    navigator.clipboard.writeText(text).then(() => { button.textContent = "copied"; });
  });
  command.prepend(button);
}
