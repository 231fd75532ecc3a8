"use strict";
document.documentElement.classList.add("js");
document.addEventListener("DOMContentLoaded", () => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const table = document.querySelector(".hosts");
  if (!table) return;
  const bodies = [...table.tBodies];
  const checks = JSON.parse(document.getElementById("checks").textContent);
  const chosen = new Set();
  const find = document.getElementById("find");
  const fold = document.getElementById("fold");

  const open = (body, on) => {
    body.querySelector(".d").classList.toggle("on", on);
    body.querySelector(".open").setAttribute("aria-expanded", on);
  };
  bodies.forEach((body) => {
    open(body, false);
    const button = body.querySelector(".open");
    button.addEventListener("click", () => open(body, button.getAttribute("aria-expanded") === "false"));
  });
  fold.addEventListener("click", () => {
    const on = fold.getAttribute("aria-pressed") === "false";
    fold.setAttribute("aria-pressed", on);
    fold.textContent = on ? "Close all" : "Open all";
    bodies.forEach((body) => open(body, on));
  });

  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    bodies.forEach((body) => {
      const text = body.rows[0].textContent.toLowerCase();
      const fits = (!chosen.size || chosen.has(body.dataset.outcome)) && words.every((word) => text.includes(word));
      body.hidden = !fits;
      shown += fits;
    });
    const whole = shown === bodies.length;
    document.getElementById("shown").textContent = whole ? "" : `${shown} of ${bodies.length} shown`;
  };
  find.addEventListener("input", filter);
  all(".counts button").forEach((button) => button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", on);
    chosen[on ? "add" : "delete"](button.dataset.outcome);
    filter();
  }));

  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const numeric = head.dataset.sort === "number";
    const key = (body) => {
      const cell = body.rows[0].cells[column];
      const value = cell.dataset.v ?? (numeric ? "" : cell.textContent);
      return numeric ? (value === "" ? null : Number(value)) : value;
    };
    const compare = new Intl.Collator("en", { numeric: true }).compare;
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return (numeric ? x - y : compare(x, y)) * (down ? -1 : 1);
    };
    [...bodies].sort(order).forEach((body) => table.append(body));
  }));

  const cell = (row, name, text, label) => {
    const made = document.createElement(name);
    made.textContent = text;
    if (label) made.dataset.label = label;
    row.append(made);
    return made;
  };
  const fill = (details) => {
    const made = document.createElement("table");
    made.className = "checks";
    const head = made.createTHead().insertRow();
    ["check", "expected", "found"].forEach((text) => { cell(head, "th", text).scope = "col"; });
    const body = made.createTBody();
    details.dataset.checks.split(",").forEach((place) => {
      const [name, expected, found, where] = checks[place];
      const row = body.insertRow();
      const first = cell(row, "th", name);
      first.scope = "row";
      if (where) cell(first, "small", where);
      cell(row, "td", expected, "expected");
      cell(row, "td", found, "found");
    });
    details.append(made);
    delete details.dataset.checks;
  };
  all("details[data-checks]").forEach((details) => details.addEventListener("toggle", () => {
    if (details.open && details.dataset.checks) fill(details);
  }));

  const follow = () => {
    const body = document.getElementById(location.hash.slice(1));
    if (!body || !bodies.includes(body)) return;
    body.hidden = false;
    open(body, true);
    body.scrollIntoView({ block: "start" });
    body.querySelector(".open").focus({ preventScroll: true });
  };
  addEventListener("hashchange", follow);
  follow();
});
