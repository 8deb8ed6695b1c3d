// Run times of queries with the same text, by the number of hosts: a chart for each text, with an axis of seconds.

import { PARTS, PART_NAMES, element, replace, seconds } from "./format.js";

const TICKS = 4;

/** The distance between two ticks: 1, 2 or 5 times a power of 10. */
function tickStep(most) {
  const least = most / TICKS;
  const power = 10 ** Math.floor(Math.log10(least));
  return power * ([1, 2, 5].find((factor) => factor * power >= least) ?? 10);
}

function column({ hosts, runs, seconds: mean, range_seconds: [least, longest], parts }, base, most) {
  const order = new Map(PARTS.map(([part], index) => [part, index]));
  const sorted = [...parts].sort((a, b) => order.get(a[0]) - order.get(b[0]));
  const time = (s) => seconds(s * 1e9);
  const text = sorted.map(([part, s]) => `${PART_NAMES.get(part) ?? part} ${time(s)}`).join(", ");
  const pieces = sorted.map(([part, s]) => {
    const piece = element("span", { class: `part-${part}`, title: `${PART_NAMES.get(part) ?? part}: ${time(s)}` });
    piece.style.height = `${((s / mean) * 100).toFixed(3)}%`;
    return piece;
  });
  const bar = element("div", { class: "column", role: "img", "aria-label": `${time(mean)}: ${text}` }, ...pieces);
  bar.style.height = `${((mean / most) * 100).toFixed(3)}%`;
  const spread = runs > 1 ? `${runs} runs, ${time(least)} to ${time(longest)}` : "1 run";
  return element(
    "div",
    { class: "column-box", title: spread },
    element("div", { class: "column-space" }, bar),
    element("div", { class: "column-name" }, `${hosts} ${hosts === 1 ? "host" : "hosts"}`),
    element("div", { class: "column-value" }, time(mean), element("small", { class: "muted" }, ` ${(base / mean).toFixed(1)}×`)),
  );
}

function chart({ label, sizes }) {
  const longest = Math.max(...sizes.map((size) => size.seconds)) || 1e-9;
  const step = tickStep(longest);
  const most = Math.ceil(longest / step) * step;
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  const ticks = Array.from({ length: Math.round(most / step) + 1 }, (_, index) => {
    const tick = element("div", { class: "axis-tick" }, element("span", {}, `${(index * step).toFixed(digits)} s`));
    tick.style.bottom = `${((index * step) / most) * 100}%`;
    return tick;
  });
  return element(
    "figure",
    { class: "columns" },
    element("figcaption", { class: "bar-label", title: label }, label),
    element(
      "div",
      { class: "columns-plot" },
      element("div", { class: "axis", "aria-hidden": "true" }, ...ticks),
      ...sizes.map((size) => column(size, sizes[0].seconds, most)),
    ),
  );
}

export function showScaling(scaling) {
  document.getElementById("scaling").hidden = !scaling.length;
  replace(document.getElementById("scaling-bars"), ...scaling.map(chart));
}
