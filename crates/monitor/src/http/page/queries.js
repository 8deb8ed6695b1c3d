// The list of queries.

import { PARTS, clockTime, element, missing, replace, seconds, stackedBar } from "./format.js";

/** The rows that are shown at first. */
const ROWS = 25;

const STATES = { running: "running", waiting: "waiting for samples", not_assessed: "not assessed" };

function verdict(query) {
  if (query.error) return element("span", { class: "badge failed", title: query.error }, "failed");
  if (query.limit) return element("span", { class: `badge limit-${query.limit}`, title: query.sentence }, query.limit_name);
  return element("span", { class: `badge ${query.state}`, title: query.reason ?? "" }, STATES[query.state] ?? query.state);
}

function row(view, query) {
  const { now_ns, unix_offset_ns } = view.overview;
  const run = (query.ended_ns ?? now_ns) - query.began_ns;
  const isChosen = query.id === view.chosen;
  const cell = (name, properties, ...children) => element("td", { ...properties, "data-name": name }, ...children);
  const open = element("button", { type: "button", class: "open", "data-key": query.id, "aria-expanded": String(isChosen), "aria-controls": "detail" }, query.label || query.id);
  return element(
    "tr",
    { class: isChosen ? "query chosen" : "query", "data-query": query.id },
    cell("Began", { class: "time" }, clockTime(query.began_ns, unix_offset_ns)),
    cell("Query", { class: "label", title: query.label }, open),
    cell("Run time", { class: "num" }, seconds(run)),
    cell("Hosts", { class: "num", title: query.hosts.join(", ") }, query.hosts.length ? String(query.hosts.length) : missing()),
    cell("Verdict", {}, verdict(query)),
    cell("Where the time went", { class: "wide" }, query.parts.length ? stackedBar(query.parts) : element("span", { class: "muted" }, query.error ?? query.reason ?? "")),
  );
}

let isLong = false;

export function setUpQueries(view, choose) {
  document.getElementById("more").addEventListener("click", () => {
    isLong = !isLong;
    showQueries(view);
  });
  document.getElementById("find").addEventListener("input", () => view.overview && showQueries(view));
  document.getElementById("limit").addEventListener("change", () => view.overview && showQueries(view));
  // One listener for all rows, because rows are replaced.
  document.getElementById("queries-rows").addEventListener("click", (event) => {
    const id = event.target.closest("tr")?.dataset.query;
    if (id && !String(getSelection())) choose(id === view.chosen ? null : id);
  });
  const item = ([part, name]) => element("span", { class: "item" }, element("span", { class: `swatch part-${part}` }), name);
  document.getElementById("legend").replaceChildren(...PARTS.map(item));
}

export function showQueries(view) {
  if (!view.overview) return;
  const limits = [...new Map(view.queries.filter((q) => q.limit).map((q) => [q.limit, q.limit_name]))].sort();
  const select = document.getElementById("limit");
  const known = [...select.options].map((option) => option.value).join();
  if (known !== ["", ...limits.map(([limit]) => limit)].join()) {
    const value = select.value;
    select.replaceChildren(element("option", { value: "" }, "all"), ...limits.map(([limit, name]) => element("option", { value: limit }, name)));
    select.value = limits.some(([limit]) => limit === value) ? value : "";
  }
  const text = document.getElementById("find").value.toLowerCase();
  const found = view.queries.filter((q) => (!text || q.label.toLowerCase().includes(text) || q.id === text) && (!select.value || q.limit === select.value));
  const shown = isLong ? found : found.slice(0, ROWS);
  const more = document.getElementById("more");
  more.hidden = found.length <= ROWS;
  more.textContent = isLong ? `Show the last ${ROWS}` : `Show all ${found.length}`;
  const rows = found.length
    ? shown.map((query) => row(view, query))
    : [element("tr", {}, element("td", { colspan: 6, class: "empty" }, view.queries.length ? "No query is like this." : "No query has been run yet."))];
  replace(document.getElementById("queries-rows"), ...rows);
  const { queries } = view.overview;
  const notes = [`${found.length} of ${queries.began + queries.restored} queries`];
  if (queries.forgotten) notes.push(`${queries.forgotten} forgotten to make room`);
  if (queries.not_assessed) notes.push(`${queries.not_assessed} not assessed, ${seconds(queries.not_assessed_seconds * 1e9)} together`);
  if (queries.assessed_late) notes.push(`${queries.assessed_late} assessed without later samples`);
  document.getElementById("queries-note").textContent = `${notes.join("; ")}.`;
}
