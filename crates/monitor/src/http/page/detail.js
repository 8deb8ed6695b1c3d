// The chosen query: its verdict, the division of its run time, and what it used on each host.

import { PARTS, PART_NAMES, bytes, clockTime, element, missing, percent, seconds, stackedBar } from "./format.js";
import { choose } from "./app.js";

const BASES = {
  counted: "counted for the query",
  device_busy: "busy time of the device",
  formula: "bytes at the calibrated speed",
  exchanges: "exchanges of small messages",
  host_pressure: "waits of the whole host",
  inferred: "inferred from the rest of the host",
  rest: "what is left",
};

function division(footprint) {
  const run = footprint.run_ns;
  const parts = footprint.division.parts.filter((time) => time.ns > 0 || time.high_ns > run * 0.02);
  const rows = parts.map((time) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, element("span", { class: `swatch part-${time.part}` }), PART_NAMES.get(time.part)),
      element("td", { class: "num" }, seconds(time.ns)),
      element("td", { class: "num" }, percent(time.ns / run)),
      element("td", { class: "num muted" }, `${seconds(time.low_ns)} to ${seconds(time.high_ns)}`),
      element("td", { class: "muted" }, BASES[time.basis] ?? time.basis, time.is_shared ? element("span", { class: "tag", title: "of something that other queries used, too: an equal share is taken" }, "shared") : null),
    ),
  );
  const head = element("tr", {}, ...["Part", "Time", "", "Bounds", "From"].map((name, index) => element("th", { scope: "col", class: index > 0 && index < 4 ? "num" : "" }, name)));
  return element("div", { class: "scroll" }, element("table", { class: "division" }, element("thead", {}, head), element("tbody", {}, ...rows)));
}

/** The phases of the run, in the order of time. */
function phases(footprint) {
  const strip = element("div", { class: "phases", role: "img", "aria-label": "The run in the order of time" });
  for (const phase of footprint.division.phases) {
    const column = element("span", { class: "phase" });
    column.style.width = `${((phase.ended_ns - phase.began_ns) / footprint.run_ns) * 100}%`;
    const total = phase.seconds.reduce((sum, value) => sum + value, 0) || 1;
    const names = [];
    phase.seconds.forEach((value, index) => {
      if (value <= 0) return;
      const piece = element("span", { class: `part-${PARTS[index][0]}` });
      piece.style.height = `${(value / total) * 100}%`;
      column.append(piece);
      if (value / total >= 0.05) names.push(`${PARTS[index][1]} ${percent(value / total)}`);
    });
    column.title = `${seconds(phase.ended_ns - phase.began_ns)}${phase.host ? ` on ${phase.host}` : ""}: ${names.join(", ")}`;
    strip.append(column);
  }
  return strip;
}

function hosts(footprint) {
  const value = (host, figure) => host.figures[figure]?.amount.value ?? null;
  const sum = (host, ...figures) => {
    const values = figures.map((figure) => value(host, figure)).filter((v) => v !== null);
    return values.length ? values.reduce((a, b) => a + b, 0) : null;
  };
  const known = (v, format) => (v === null ? missing() : format(v));
  const rows = footprint.hosts.map((host, index) =>
    element(
      "tr",
      { class: index === footprint.bottleneck ? "bottleneck" : "" },
      element("th", { scope: "row" }, host.host, index === footprint.bottleneck ? element("span", { class: "tag", title: "the host that limited the query longest" }, "limit") : null),
      ...[
        known(sum(host, "cpu_user_ns", "cpu_system_ns"), seconds),
        known(value(host, "run_queue_wait_ns"), seconds),
        known(value(host, "disk_wait_ns"), seconds),
        known(sum(host, "disk_read_bytes", "disk_written_bytes"), bytes),
        known(value(host, "network_received_bytes"), bytes),
        known(value(host, "network_sent_bytes"), bytes),
        known(value(host, "memory_bytes"), bytes),
        `${host.samples}${host.lost ? `, ${host.lost} lost` : ""}`,
      ].map((content) => element("td", { class: "num" }, content)),
    ),
  );
  const names = ["Host", "CPU", "Run queue", "Disk wait", "Disk bytes", "Received", "Sent", "Memory", "Samples"];
  const head = element("tr", {}, ...names.map((name, index) => element("th", { scope: "col", class: index ? "num" : "" }, name)));
  const reasons = new Map(footprint.hosts.flatMap((host) => Object.entries(host.unavailable)));
  const unavailable = [...reasons].slice(0, 12).map(([figure, reason]) => element("li", {}, `${figure.replaceAll("_", " ").replace(/ ns$/, "")}: ${reason}`));
  return element(
    "div",
    {},
    element("div", { class: "scroll" }, element("table", { class: "footprint" }, element("thead", {}, head), element("tbody", {}, ...rows))),
    unavailable.length ? element("details", {}, element("summary", {}, `${reasons.size} figures can't be had`), element("ul", {}, ...unavailable)) : null,
  );
}

let rendered = "";

export function showDetail(view, isNew) {
  const panel = document.getElementById("detail");
  const query = view.detail;
  panel.hidden = !query;
  if (!query) {
    rendered = "";
    panel.replaceChildren();
    return;
  }
  const content = JSON.stringify(query);
  if (content === rendered) return;
  rendered = content;
  const offset = view.overview?.unix_offset_ns ?? 0;
  const close = element("button", { type: "button", class: "close", "aria-label": "Close (Escape)", title: "Close (Escape)" }, "×");
  close.addEventListener("click", () => choose(null));
  const run = query.ended_ns ? seconds(query.ended_ns - query.began_ns) : "running";
  const when = offset ? `began ${clockTime(query.began_ns, offset)}, ` : "";
  const children = [
    element("div", { class: "head" }, element("h2", { id: "detail-title" }, "Query ", element("span", { class: "muted" }, query.id)), element("span", { class: "muted" }, `${when}${run}`), close),
    element("pre", { class: "sql" }, query.label),
  ];
  if (query.error) children.push(element("p", { class: "error" }, `It failed: ${query.error}`));
  if (query.reason) children.push(element("p", { class: "note" }, `Not assessed: ${query.reason}.`));
  if (query.state === "running") children.push(element("p", { class: "note" }, "It runs. The verdict comes after its end."));
  if (query.state === "waiting") children.push(element("p", { class: "note" }, "It ended. The samples after its end are awaited."));
  if (query.late_hosts.length) children.push(element("p", { class: "notice" }, `Samples after the end did not come from ${query.late_hosts.join(", ")}: the end of the run is less certain.`));
  if (query.verdict) {
    const { verdict } = query;
    children.push(
      element(
        "div",
        { class: `verdict limit-${verdict.limit}` },
        element("p", { class: "sentence" }, verdict.sentence),
        element("p", { class: "certainty muted" }, verdict.is_certain ? "Certain: at least half of the run time even at the lower bound." : "Likely: the bounds of the measurements allow other limits."),
        verdict.evidence.length ? element("ul", { class: "evidence" }, ...verdict.evidence.map((line) => element("li", {}, line))) : null,
        element("p", { class: "advice" }, element("strong", {}, "What would help: "), verdict.advice),
      ),
    );
  }
  if (query.footprint) {
    children.push(
      element("h3", {}, "Where the time went"),
      stackedBar(query.parts),
      phases(query.footprint),
      element("p", { class: "note" }, "Above: the whole run by part. Below: the same in the order of time."),
      division(query.footprint),
      element("h3", {}, "What it used"),
      hosts(query.footprint),
    );
  } else if (query.is_footprint_dropped) {
    children.push(element("p", { class: "note" }, "The details were dropped to make room for later queries."), stackedBar(query.parts));
  }
  panel.replaceChildren(...children.filter(Boolean));
  if (isNew) {
    panel.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    panel.focus({ preventScroll: true });
  }
}
