// Two lines of tokens. The one that is pointed at or focused lights the other line by its row or
// column of the map, with arcs as thick as the push; a click, Enter or the space bar pins it. Only
// what is lit changes: the page is not drawn anew.
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const WIDEST = 9; // pixels of the strongest arc
  const THINNEST = 0.4; // an arc below this is not drawn
  const states = new WeakMap(); // of a figure: its numbers, the largest, what is lit and whether it is pinned

  const linesOf = (figure) => [...figure.querySelectorAll(".line")];
  const tokensOf = (line) => [...line.querySelectorAll(".token")];
  const tokenOf = (target) => target.closest && target.closest(".lit .token");

  const arc = (from, to, nats, state, origin) => {
    const [a, b] = [from.getBoundingClientRect(), to.getBoundingClientRect()];
    const [x0, x1] = [a, b].map((box) => box.left + box.width / 2 - origin.left);
    const [y0, y1] = [a.bottom - origin.top, b.top - origin.top];
    const bend = (y1 - y0) / 2;
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", `M${x0} ${y0}C${x0} ${y0 + bend} ${x1} ${y1 - bend} ${x1} ${y1}`);
    path.setAttribute("class", nats < 0 ? "lowered" : "raised");
    path.setAttribute("stroke-width", WIDEST * Math.abs(nats) / state.largest);
    return path;
  };

  const drawArcs = (figure) => {
    const state = states.get(figure), lines = linesOf(figure);
    const own = lines.findIndex((line) => line.contains(state.token));
    const others = tokensOf(lines[1 - own]);
    const place = figure.querySelector(".arcs"), origin = place.getBoundingClientRect();
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("aria-hidden", "true");
    state.row.forEach((nats, at) => {
      if (WIDEST * Math.abs(nats) / state.largest < THINNEST) return;
      const ends = own === 0 ? [state.token, others[at]] : [others[at], state.token];
      svg.append(arc(...ends, nats, state, origin));
    });
    place.replaceChildren(svg);
  };

  const light = (figure, token) => {
    const state = states.get(figure), lines = linesOf(figure);
    const own = lines.findIndex((line) => line.contains(token));
    const place = tokensOf(lines[own]).indexOf(token);
    state.token = token;
    state.row = own === 1 ? state.nats[place] : state.nats.map((row) => row[place]);
    for (const other of tokensOf(lines[own])) {
      other.className = other === token ? "token lit-by" : "token";
      other.style.removeProperty("--push");
    }
    tokensOf(lines[1 - own]).forEach((other, at) => {
      const nats = state.row[at];
      other.className = `token ${nats < 0 ? "lowered" : nats > 0 ? "raised" : ""}`;
      other.style.setProperty("--push", Math.abs(nats) / state.largest);
    });
    figure.querySelector("figcaption p").textContent = token.title;
    drawArcs(figure);
  };

  const pin = (figure, token) => {
    const state = states.get(figure);
    state.pinned = state.pinned === token ? null : token;
    for (const other of figure.querySelectorAll(".token")) {
      other.setAttribute("aria-pressed", String(other === state.pinned));
    }
    light(figure, token);
  };

  const pointedAt = (event) => {
    const token = tokenOf(event.target), figure = token && token.closest(".lit");
    if (!figure || states.get(figure).pinned) return;
    if (states.get(figure).token !== token) light(figure, token);
  };

  document.addEventListener("pointerover", pointedAt);
  document.addEventListener("focusin", (event) => {
    const token = tokenOf(event.target);
    if (!token) return;
    for (const other of tokensOf(token.parentElement)) other.tabIndex = other === token ? 0 : -1;
    pointedAt(event);
  });
  document.addEventListener("click", (event) => {
    const token = tokenOf(event.target);
    if (token) pin(token.closest(".lit"), token);
  });
  document.addEventListener("keydown", (event) => {
    const token = tokenOf(event.target);
    if (!token) return;
    const figure = token.closest(".lit"), all = tokensOf(token.parentElement);
    const at = all.indexOf(token), lines = linesOf(figure);
    const own = lines.indexOf(token.parentElement);
    if (event.key === "Enter" || event.key === " ") pin(figure, token);
    else if (event.key === "Escape" && states.get(figure).pinned) pin(figure, states.get(figure).pinned);
    else if (event.key === "ArrowRight" && at + 1 < all.length) all[at + 1].focus();
    else if (event.key === "ArrowLeft" && at > 0) all[at - 1].focus();
    else if (event.key === "ArrowDown" && own === 0) entry(lines[1]).focus();
    else if (event.key === "ArrowUp" && own === 1) entry(lines[0]).focus();
    else return;
    event.preventDefault();
  });
  const entry = (line) => tokensOf(line).find((token) => token.tabIndex === 0);

  // A figure that has come, or whose map is another one's, shows its strongest row.
  const arrived = () => {
    for (const figure of document.querySelectorAll(".lit")) {
      const data = figure.dataset.nats, state = states.get(figure);
      if (state && state.data === data) continue;
      const nats = JSON.parse(data);
      const largest = Math.max(...nats.flat().map(Math.abs));
      states.set(figure, { data, nats, largest, token: null, row: [], pinned: null });
      light(figure, tokensOf(linesOf(figure)[1])[Number(figure.dataset.strongest)]);
    }
  };
  new MutationObserver(arrived).observe(
    document, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-nats"] });
  window.addEventListener("resize", () => document.querySelectorAll(".lit").forEach(drawArcs));
})();
