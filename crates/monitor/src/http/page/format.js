// Numbers, times and elements.

/** The parts of a run time: key and name. Their colours are fixed in the style sheet: blue for processors, orange for
 *  disks, green for the network, purple for waits for others, yellow for memory, grey for what is unexplained. Any two
 *  differ by at least 19 (CIE 1976), also for people who do not see red, green or blue (Machado et al., 2009). */
export const PARTS = [
  ["cpu", "CPU"],
  ["run_queue_wait", "waiting for a processor"],
  ["stolen", "taken by the hypervisor"],
  ["disk_sequential", "disk, sequential"],
  ["disk_random", "disk, random"],
  ["network", "network"],
  ["round_trips", "round trips"],
  ["receiver_limited", "receiver"],
  ["sender_limited", "send buffer"],
  ["lock_wait", "waiting for a lock"],
  ["queue_wait", "waiting for other queries"],
  ["client_wait", "waiting for the client"],
  ["memory_pressure", "memory pressure"],
  ["unexplained", "unexplained"],
];
export const PART_NAMES = new Map(PARTS);

/** An element with properties and children. Text is always set as text, so that labels can't become markup. */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== undefined && child !== null));
  return node;
}

export const missing = () => element("span", { class: "missing", title: "not known" }, "–");

export function seconds(ns) {
  const s = Math.abs(ns) / 1e9;
  if (s < 5e-7) return "0 s";
  if (s < 1e-3) return `${Math.round(s * 1e6)} µs`;
  if (s < 1) return `${Number((s * 1e3).toPrecision(3))} ms`;
  if (s < 100) return `${s.toFixed(s < 10 ? 2 : 1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 172800) return `${(s / 3600).toFixed(1)} h`;
  return `${(s / 86400).toFixed(1)} days`;
}

export function signed(ns) {
  return (ns < 0 ? "−" : "+") + seconds(ns);
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export const rate = (value) => `${bytes(value)}/s`;
export const percent = (fraction) => `${Math.round(fraction * 100)}%`;

/** The time of day of a time of the collector's clock, with the date if that was not today. */
export function clockTime(ns, offsetNs) {
  const date = new Date((ns + offsetNs) / 1e6);
  const time = date.toLocaleTimeString(undefined, { hour12: false });
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? time : `${date.toLocaleDateString(undefined, { month: "short", day: "numeric" })}, ${time}`;
}

/** A bar of parts. `parts` are {part, fraction}; what is left is empty. */
export function stackedBar(parts, scale = 1) {
  const text = parts.map((p) => `${PART_NAMES.get(p.part) ?? p.part} ${percent(p.fraction)}`).join(", ");
  const bar = element("div", { class: "stack", role: "img", "aria-label": text || "nothing" });
  for (const { part, fraction } of parts) {
    if (fraction <= 0) continue;
    const piece = element("span", { class: `piece part-${part}`, title: `${PART_NAMES.get(part) ?? part}: ${percent(fraction)}` });
    piece.style.width = `${(fraction * scale * 100).toFixed(3)}%`;
    bar.append(piece);
  }
  return bar;
}

/** A meter with a text beside it. */
export function meter(fraction, text, title) {
  const fill = element("span", { class: fraction > 0.9 ? "fill high" : "fill" });
  fill.style.width = `${Math.min(1, Math.max(0, fraction)) * 100}%`;
  return element("div", { class: "meter", title }, element("span", { class: "track" }, fill), element("span", { class: "value" }, text));
}

/** Replaces the children of a node if they would look different, so that focus and selection stay. */
export function replace(node, ...children) {
  const next = document.createElement("div");
  next.append(...children);
  if (node.dataset.shown === next.innerHTML) return;
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  node.dataset.shown = next.innerHTML;
  node.replaceChildren(...next.childNodes);
  if (focused) node.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}
