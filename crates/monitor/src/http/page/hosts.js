// The table of hosts, and what happened to them.

import { bytes, clockTime, element, meter, missing, percent, rate, replace, seconds, signed } from "./format.js";

const STATES = { live: "live", late: "late", left: "left" };

function pair(a, b, format) {
  if (a === null && b === null) return [missing()];
  const one = (value) => (value === null ? missing() : format(value));
  return [element("span", {}, one(a), " / ", one(b))];
}

function row(host) {
  const { facts, clock, datagrams } = host;
  const processors = facts.processors || null;
  const cell = (name, properties, ...children) => element("td", { ...properties, "data-name": name }, ...children);
  const cpu = host.cpu_used === null
    ? missing()
    : meter(processors ? host.cpu_used / processors : 0, `${host.cpu_used.toFixed(1)}${processors ? ` of ${processors}` : ""}`, "processors in use");
  const disk = host.disk_busy === null ? missing() : meter(host.disk_busy, percent(host.disk_busy), "busy time of the busiest disk");
  const total = facts.memory_bytes ?? (host.memory_used_bytes ?? 0) + (host.memory_available_bytes ?? 0);
  const memory = host.memory_used_bytes === null
    ? missing()
    : meter(total ? host.memory_used_bytes / total : 0, `${bytes(host.memory_used_bytes)}`, `${bytes(host.memory_used_bytes)} used, ${bytes(host.memory_available_bytes ?? 0)} available`);
  const offset = clock.offset_ns === null
    ? [missing()]
    : [element("span", {}, signed(clock.offset_ns), " ", element("span", { class: "muted" }, `± ${seconds(clock.bound_ns)}`))];
  const sent = datagrams.received + datagrams.lost;
  const about = [
    host.address && `from ${host.address}`,
    facts.kernel && `Linux ${facts.kernel}`,
    facts.processor_limit && `limited to ${facts.processor_limit} processors`,
    facts.memory_limit_bytes && `limited to ${bytes(facts.memory_limit_bytes)}`,
    `${facts.processes} processes counted`,
    facts.processes_left_out && `${facts.processes_left_out} processes left out`,
    facts.hidden && `not seen: ${facts.hidden}`,
  ].filter(Boolean).join("; ");
  return element(
    "tr",
    { class: `host is-${host.state}` },
    element("th", { scope: "row", title: about }, element("span", { class: `dot is-${host.state}` }), host.name, host.state === "live" ? null : element("span", { class: "tag" }, STATES[host.state])),
    cell("CPU", {}, cpu),
    cell("Waiting threads", { class: "num" }, host.run_queue === null ? missing() : host.run_queue.toFixed(2)),
    cell("Disk", {}, disk),
    cell("Read / written", { class: "num" }, ...pair(host.disk_read_bytes_per_second, host.disk_written_bytes_per_second, rate)),
    cell("Received / sent", { class: "num" }, ...pair(host.network_received_bytes_per_second, host.network_sent_bytes_per_second, rate)),
    cell("Memory", {}, memory),
    cell("Clock offset ± bound", { class: "num", title: clock.drift_ppm === null ? "" : `drift ${clock.drift_ppm.toFixed(1)} ppm` }, ...offset, clock.is_doubtful ? element("span", { class: "tag" }, "doubtful") : null),
    cell("Lost", { class: "num", title: `${datagrams.received} datagrams came, ${datagrams.doubled} twice, ${datagrams.reordered} late` }, datagrams.lost ? `${datagrams.lost} (${((datagrams.lost / sent) * 100).toFixed(1)}%)` : "0"),
    cell("Last heard", { class: "num" }, `${(host.silent_ns / 1e9).toFixed(1)} s ago`),
  );
}

export function showHosts(overview) {
  const rows = overview.hosts.length
    ? overview.hosts.map(row)
    : [element("tr", {}, element("td", { colspan: 10, class: "empty" }, "No host has sent samples yet."))];
  replace(document.getElementById("hosts-rows"), ...rows);
  const events = overview.events.slice(-50).reverse();
  document.getElementById("events").hidden = !events.length;
  document.querySelector("#events summary").textContent = `${overview.events.length} events`;
  const item = (event) => element("li", {}, element("time", {}, clockTime(event.at_ns, overview.unix_offset_ns)), ` ${event.host}: ${event.text}`);
  replace(document.getElementById("events-rows"), ...events.map(item));
}
