// A plot for each host, with the same time axis. The span of the chosen query is marked in all of them.

import { bytes, element, percent, rate } from "./format.js";
import { ask } from "./app.js";
import { clearTraffic, resizeTraffic, showTraffic } from "./traffic.js";

const GROUPS = [
  ["cpu", "CPU"],
  ["disk", "Disk"],
  ["disk_busy", "Disk busy"],
  ["network", "Network"],
  ["memory", "Memory"],
  ["pressure", "Pressure"],
];
const RANGES = [[60, "1 min"], [300, "5 min"], [900, "15 min"], [3600, "1 h"], [null, "all"]];
/** Sign, name, factor of the length, and the part of the length by which it moves. */
const MOVES = [["+", "Zoom in", 0.5, 0], ["−", "Zoom out", 2, 0], ["‹", "Earlier", 1, -0.5], ["›", "Later", 1, 0.5]];
/** The shortest span that is shown. */
const SPAN_MIN_NS = 1e8;
const FORMATS = {
  processors: (v) => v.toFixed(v < 10 ? 2 : 1),
  bytes_per_second: rate,
  bytes,
  fraction: percent,
};
/** Colours of lines by their place, from the style sheet, so that they follow light and dark. */
export const LINES = 8;
const SYNC = "hosts";
const HOSTS_MAX = 24;

const charts = new Map();
let shown = "";
/** The end of all vertical axes, so that hosts can be compared. */
let highest = 1;

export function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** From and to of what is shown, in nanoseconds. */
function span(view) {
  const { now_ns, hosts } = view.overview;
  if (view.zoom) return view.zoom;
  if (view.rangeSeconds) return [Math.max(0, now_ns - view.rangeSeconds * 1e9), now_ns];
  const first = hosts.map((host) => host.span_ns?.[0]).filter((ns) => ns !== undefined && ns !== null);
  return [Math.min(now_ns, ...first), now_ns];
}

/** Zooms around the middle, and moves, as dragging does for the mouse. What is after now can't be shown. */
function move(view, factor, part) {
  if (!view.overview) return;
  const [from, to] = span(view);
  const length = Math.max(SPAN_MIN_NS, (to - from) * factor);
  const end = Math.min(view.overview.now_ns, (from + to + length) / 2 + part * length);
  view.zoom = [Math.max(0, end - length), end];
  showTimelines(view);
}

/** Marks the chosen query: on hosts that worked for it, the whole span, and on others only its top. */
function marker(view, host) {
  return {
    hooks: {
      drawClear: (plot) => {
        const query = view.detail;
        if (!query || !view.overview) return;
        const offset = view.overview.unix_offset_ns;
        const at = (ns) => plot.valToPos((ns + offset) / 1e9, "x", true);
        const { left, top, width, height } = plot.bbox;
        const from = Math.max(left, at(query.began_ns));
        const to = Math.min(left + width, at(query.ended_ns ?? view.overview.now_ns));
        if (to <= from) return;
        const { ctx } = plot;
        ctx.save();
        const isOwn = !query.hosts.length || query.hosts.includes(host);
        if (isOwn) {
          ctx.fillStyle = style("--marker");
          ctx.fillRect(from, top, Math.max(to - from, 1), height);
        }
        ctx.fillStyle = style(isOwn ? "--accent" : "--muted");
        ctx.fillRect(from, top, Math.max(to - from, 1), 2 * devicePixelRatio);
        ctx.restore();
      },
    },
  };
}

/** The labels of the time axis: seconds only where they differ. */
function times(_, ticks) {
  const hasSeconds = ticks.some((tick) => tick % 60 !== 0);
  const style = { hour: "2-digit", minute: "2-digit", second: hasSeconds ? "2-digit" : undefined, hour12: false };
  return ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString(undefined, style));
}

/** What all plots over time have in common. `highest` gives the end of the vertical axis. */
export function frame(view, box, format, highest) {
  const axis = { stroke: style("--muted"), grid: { stroke: style("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  return {
    width: Math.max(240, box.clientWidth),
    height: 150,
    cursor: { sync: { key: SYNC, setSeries: false }, drag: { x: true, y: false, setScale: false }, points: { size: 5 } },
    legend: { live: true },
    scales: { x: { time: true }, y: { range: () => [0, highest()] } },
    axes: [{ ...axis, size: 26, space: 70, values: times }, { ...axis, size: 68, values: (_, ticks) => ticks.map(format) }],
    hooks: {
      setSelect: [
        (plot) => {
          if (plot.select.width < 4) return;
          const offset = view.overview.unix_offset_ns;
          const at = (x) => plot.posToVal(x, "x") * 1e9 - offset;
          view.zoom = [at(plot.select.left), at(plot.select.left + plot.select.width)];
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          choices(view);
          showTimelines(view);
        },
      ],
    },
  };
}

/** A plot in a box, of a frame with lines and data. */
export function addPlot(view, box, { lines, data, ...options }) {
  const time = { value: (_, v) => (v === null ? "–" : new Date(v * 1000).toLocaleTimeString(undefined, { hour12: false })) };
  const plot = new uPlot({ ...options, series: [time, ...lines] }, data, box);
  plot.over.addEventListener("dblclick", () => {
    view.zoom = null;
    choices(view);
    showTimelines(view);
  });
  return plot;
}

function lines(series) {
  const format = FORMATS[series.unit] ?? String;
  return series.lines.map((line, index) => ({
    label: line.name,
    stroke: style(`--line-${(index % LINES) + 1}`),
    width: 1.5,
    fill: index === 0 ? style("--line-fill") : undefined,
    spanGaps: false,
    points: { show: false },
    value: (_, v) => (v === null || v === undefined ? "–" : format(v)),
  }));
}

function draw(view, host, series, [from, to]) {
  const offset = view.overview.unix_offset_ns;
  const data = [series.at_ns.map((ns) => (ns + offset) / 1e9), ...series.lines.map((line) => line.values)];
  const names = series.lines.map((line) => line.name).join();
  const scale = { min: (from + offset) / 1e9, max: (to + offset) / 1e9 };
  let chart = charts.get(host);
  if (chart && chart.names === names) {
    chart.plot.batch(() => {
      chart.plot.setData(data, false);
      chart.plot.setScale("x", scale);
      chart.plot.setScale("y", { min: 0, max: highest });
    });
    return;
  }
  const box = chart?.box ?? element("figure", { class: "chart" }, element("figcaption", {}, host));
  chart?.plot.destroy();
  if (!box.isConnected) document.getElementById("charts").append(box);
  const plot = addPlot(view, box, {
    ...frame(view, box, FORMATS[series.unit] ?? String, () => highest),
    lines: lines(series),
    data,
    plugins: [marker(view, series.host)],
  });
  plot.setScale("x", scale);
  charts.set(host, { box, plot, names });
}

function clear() {
  for (const { plot, box } of charts.values()) {
    plot.destroy();
    box.remove();
  }
  charts.clear();
}

export async function showTimelines(view) {
  if (!view.overview) return;
  choices(view);
  const all = view.overview.hosts.filter((host) => host.span_ns).map((host) => host.name);
  // Of many hosts, those of the chosen query come first.
  const own = new Set(view.detail?.hosts ?? []);
  const hosts = [...all].sort((a, b) => own.has(b) - own.has(a)).slice(0, HOSTS_MAX).sort();
  const [from, to] = span(view);
  document.getElementById("trace").href = `/api/trace?from_ns=${Math.max(0, Math.floor(from))}&to_ns=${Math.max(0, Math.floor(to))}`;
  const path = (host) =>
    `/api/series?host=${encodeURIComponent(host)}&group=${view.group}&from_ns=${Math.max(0, Math.floor(from))}&to_ns=${Math.max(0, Math.floor(to))}&points=400`;
  const group = view.group;
  // A host may be forgotten after the overview was made.
  const gone = (error) => {
    if (error.status !== 404) throw error;
    return null;
  };
  const answers = await Promise.all(hosts.map((host) => ask(path(host)).catch(gone)));
  if (group !== view.group) return;
  const series = answers.filter(Boolean);
  const key = `${group} ${series.map(({ host }) => host).join()}`;
  if (key !== shown) clear();
  shown = key;
  const values = series.flatMap(({ lines }) => lines.flatMap((line) => line.values));
  const most = values.reduce((most, value) => Math.max(most, value ?? 0), 0);
  highest = series[0]?.unit === "fraction" ? Math.max(1, most) : most * 1.08 || 1;
  if (group === "network") showTraffic(view, series, [from, to]);
  else clearTraffic();
  series.forEach((one) => draw(view, one.host, one, [from, to]));
  const left = all.length - hosts.length;
  const zoomed = view.zoom ? "Double-click a plot, or choose a range, to go back to now." : "Drag over a plot, or press +, to zoom in.";
  const marked = view.detail ? " The shaded span is the chosen query, on the hosts that worked for it." : "";
  document.getElementById("timelines-note").textContent = `${zoomed}${marked}${left ? ` ${left} more hosts are not shown.` : ""}`;
}

function choices(view) {
  const button = (text, isChosen, act) => {
    const node = element("button", { type: "button", "aria-pressed": String(isChosen) }, text);
    node.addEventListener("click", act);
    return node;
  };
  const state = `${view.group} ${view.rangeSeconds} ${Boolean(view.zoom)}`;
  const groups = document.getElementById("groups");
  if (groups.dataset.state === state) return;
  const focused = document.activeElement?.textContent;
  groups.dataset.state = state;
  groups.replaceChildren(...GROUPS.map(([group, name]) => button(name, group === view.group, () => {
    view.group = group;
    showTimelines(view);
  })));
  const ranges = document.getElementById("ranges");
  ranges.replaceChildren(...RANGES.map(([seconds, name]) => button(name, !view.zoom && seconds === view.rangeSeconds, () => {
    view.rangeSeconds = seconds;
    view.zoom = null;
    showTimelines(view);
  })));
  const again = [...groups.children, ...ranges.children].find((node) => node.textContent === focused);
  if (again && document.activeElement === document.body) again.focus({ preventScroll: true });
}

export function setUpTimelines(view) {
  choices(view);
  document.getElementById("moves").replaceChildren(...MOVES.map(([sign, name, factor, part]) => {
    const button = element("button", { type: "button", "aria-label": name, title: name }, sign);
    button.addEventListener("click", () => move(view, factor, part));
    return button;
  }));
  new ResizeObserver(() => {
    for (const { plot, box } of charts.values()) {
      const width = Math.max(240, box.clientWidth);
      if (Math.abs(width - plot.width) > 1) plot.setSize({ width, height: plot.height });
    }
    resizeTraffic();
  }).observe(document.getElementById("charts"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    clear();
    clearTraffic();
    shown = "";
    showTimelines(view);
  });
}
