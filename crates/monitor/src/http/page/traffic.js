// The bytes that all hosts receive and send, stacked by host: a plot for each direction.

import { element, rate } from "./format.js";
import { LINES, addPlot, frame, style } from "./timelines.js";

const DIRECTIONS = [["received", "Received by all hosts"], ["sent", "Sent by all hosts"]];

let charts = new Map();
let shown = "";

/** Values of several lines by point: their sum; null where none is known. */
function sum(lines, points) {
  return Array.from({ length: points }, (_, point) => {
    const known = lines.map((line) => line.values[point]).filter((value) => value !== null && value !== undefined);
    return known.length ? known.reduce((all, value) => all + value, 0) : null;
  });
}

/** The traffic of each host at the same moments: { at, hosts: [{ host, values }] }. Hosts are sampled at their own
 *  pace, so that the coarsest is taken for all. */
function together(series, direction) {
  const step = Math.max(1, ...series.map((one) => one.step_ns));
  const hosts = series.map(({ host, at_ns, lines }) => {
    const own = lines.filter((line) => line.name === direction || line.name === `${direction}, loopback`);
    const values = sum(own, at_ns.length);
    const slots = new Map();
    at_ns.forEach((at, point) => {
      if (values[point] === null) return;
      const slot = Math.floor(at / step);
      const found = slots.get(slot) ?? { sum: 0, count: 0 };
      slots.set(slot, { sum: found.sum + values[point], count: found.count + 1 });
    });
    return { host, slots };
  });
  const slots = hosts.flatMap((host) => [...host.slots.keys()]);
  const first = slots.reduce((least, slot) => Math.min(least, slot), Infinity);
  const last = slots.reduce((most, slot) => Math.max(most, slot), -Infinity);
  const all = slots.length ? Array.from({ length: last - first + 1 }, (_, index) => first + index) : [];
  const value = ({ slots }, slot) => (slots.has(slot) ? slots.get(slot).sum / slots.get(slot).count : null);
  return { at: all.map((slot) => (slot + 0.5) * step), hosts: hosts.map((host) => ({ host: host.host, values: all.map((slot) => value(host, slot)) })) };
}

/** From the bottom up, each host's line is the sum of its own traffic and of that below. */
function stacked(hosts, points) {
  const below = new Array(points).fill(0);
  return hosts.map(({ values }) => values.map((value, point) => {
    if (value === null) return null;
    below[point] += value;
    return below[point];
  }));
}

export function clearTraffic() {
  for (const { plot, box } of charts.values()) {
    plot.destroy();
    box.remove();
  }
  charts.clear();
  shown = "";
}

/** Shows the traffic of series of the group "network". */
export function showTraffic(view, series, [from, to]) {
  const key = series.map(({ host }) => host).join();
  if (key !== shown) clearTraffic();
  shown = key;
  const directions = DIRECTIONS.map(([direction]) => together(series, direction));
  const tops = directions.map(({ at, hosts }) => stacked(hosts, at.length));
  const highest = Math.max(1, 1.08 * tops.flat(2).reduce((most, value) => Math.max(most, value ?? 0), 0));
  const offset = view.overview.unix_offset_ns;
  DIRECTIONS.forEach(([direction, title], index) => {
    const { at, hosts } = directions[index];
    // The whole is drawn first, and what is below it over it.
    const data = [at.map((ns) => (ns + offset) / 1e9), ...tops[index].toReversed()];
    const x = { min: (from + offset) / 1e9, max: (to + offset) / 1e9 };
    const chart = charts.get(direction);
    if (chart) {
      Object.assign(chart, { hosts, highest });
      chart.plot.batch(() => {
        chart.plot.setData(data, false);
        chart.plot.setScale("x", x);
        chart.plot.setScale("y", { min: 0, max: highest });
      });
      return;
    }
    const box = element("figure", { class: "chart" }, element("figcaption", {}, title));
    document.getElementById("traffic").append(box);
    const made = { box, hosts, highest };
    const colour = (line) => style(`--line-${(line % LINES) + 1}`);
    const own = (line, point) => made.hosts[line]?.values[point];
    const lines = hosts.map(({ host }, line) => ({
      label: host,
      stroke: colour(line),
      fill: colour(line),
      width: 1,
      spanGaps: false,
      points: { show: false },
      // What the host has, not the sum that is drawn.
      value: (_, __, ___, point) => (typeof own(line, point) === "number" ? rate(own(line, point)) : "–"),
    }));
    made.plot = addPlot(view, box, {
      ...frame(view, box, rate, () => made.highest),
      lines: lines.toReversed(),
      data,
    });
    made.plot.setScale("x", x);
    charts.set(direction, made);
  });
}

export function resizeTraffic() {
  for (const { plot, box } of charts.values()) {
    const width = Math.max(240, box.clientWidth);
    if (Math.abs(width - plot.width) > 1) plot.setSize({ width, height: plot.height });
  }
}
