// Keeps focus, place and what is unfolded where drawing a part anew would lose them; the list is one
// stop of Tab.
(() => {
  "use strict";
  const PARTS = "#navigation, #list, #view";
  const FOCUSABLE = "a[href], button, input, textarea, summary, [tabindex], [role=slider]";
  const TO_MAP = "map on this answer"; // in the titles of links that draw a map
  let last = null; // what has the focus: its part, id, text and title, and the element
  let formerMap = null; // heading of the map that another takes the place of; null: none is awaited

  const facts = (element) => ({
    id: element.id || (element.getAttribute("role") === "slider" ? "slider" : ""),
    text: element.matches("a, button, summary") ? element.textContent : "",
    title: element.title || "",
  });

  const topOf = (element) => element.getBoundingClientRect().top;
  const unfolded = new Map(); // whether the part with a summary is open

  const remember = (element) => {
    const part = element.closest && element.closest(PARTS);
    if (!part) {
      last = null;
      return;
    }
    const own = facts(element), all = [...part.querySelectorAll(FOCUSABLE)];
    const place = (same) => all.filter((other) => same(facts(other))).indexOf(element);
    const ways = [
      (other) => own.id && other.id === own.id,
      (other) => (own.text || own.title) && other.text === own.text && other.title === own.title,
      (other) => own.title && other.title === own.title, // its text changed
      (other) => own.text && other.text === own.text, // its title changed
    ].map((same) => ({ same, place: place(same) }));
    last = { element, part: part.id, ways, top: topOf(element) };
  };

  const again = () => {
    const all = [...document.getElementById(last.part).querySelectorAll(FOCUSABLE)];
    for (const { same, place } of last.ways) {
      const alike = all.filter((other) => same(facts(other)));
      if (alike.length) return alike[Math.min(Math.max(place, 0), alike.length - 1)];
    }
    return null;
  };

  const oneStop = (current) => {
    for (const link of document.querySelectorAll(".answers a")) {
      link.tabIndex = link === current ? 0 : -1;
    }
  };

  const summaryOf = (part) => part.querySelector("summary").textContent;

  const drawn = () => {
    // Dash gives its slider no name, and its hidden field a stop of Tab.
    for (const slider of document.querySelectorAll("[role=slider]")) slider.setAttribute("aria-label", "step");
    for (const hidden of document.querySelectorAll("input[aria-hidden=true]")) hidden.tabIndex = -1;
    for (const part of document.querySelectorAll("#view details")) {
      const open = unfolded.get(summaryOf(part));
      if (open !== undefined && open !== part.open) part.open = open;
    }
    const links = document.querySelectorAll(".answers a");
    if (links.length && ![...links].some((link) => link.tabIndex === 0 && link.hasAttribute("tabindex"))) {
      oneStop(document.querySelector(".answers a.chosen") || links[0]);
    }
    const map = document.getElementById("map");
    if (formerMap !== null && map && map.textContent !== formerMap) {
      formerMap = null;
      map.scrollIntoView();
      map.focus({ preventScroll: true });
      return;
    }
    const lost = document.activeElement === document.body || !document.activeElement;
    if (lost && last && !document.contains(last.element)) {
      const found = again();
      if (found) {
        const top = last.top;
        found.focus({ preventScroll: true });
        window.scrollBy(0, topOf(found) - top);
      }
    }
  };

  document.addEventListener("scroll", () => {
    if (last && document.contains(last.element)) last.top = topOf(last.element);
  });

  document.addEventListener("toggle", ({ target }) => {
    if (target.matches("#view details")) unfolded.set(summaryOf(target), target.open);
  }, true);

  document.addEventListener("focusin", (event) => {
    remember(event.target);
    if (event.target.matches(".answers a")) oneStop(event.target);
  });

  document.addEventListener("keydown", (event) => {
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (!(event.key in moves) || !event.target.matches(".answers a")) return;
    const links = [...document.querySelectorAll(".answers a")];
    const next = links[links.indexOf(event.target) + moves[event.key]];
    if (next) { event.preventDefault(); next.focus(); }
  });

  // Links go to the top of the page; those inside the view leave it where it is.
  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest("#view a, .answers a");
    if (!link) return;
    const top = window.scrollY;
    if (link.title.includes(TO_MAP)) formerMap = (document.getElementById("map") || { textContent: "" }).textContent;
    setTimeout(() => {
      if (link.closest("#view")) window.scrollTo(0, top);
      else if (matchMedia("(max-width: 760px)").matches) document.querySelector(".view").scrollIntoView();
    });
  }, true);

  new MutationObserver(drawn).observe(document, { childList: true, subtree: true });
})();
