// The page: asks for reports, and shows them until it is paused or closed.

import { bytes, element, replace } from "./format.js";
import { showHosts } from "./hosts.js";
import { setUpTimelines, showTimelines } from "./timelines.js";
import { setUpQueries, showQueries } from "./queries.js";
import { showScaling } from "./scaling.js";
import { showDetail } from "./detail.js";

const REFRESH_MS = 2000;
const QUERIES_MAX = 200;

/** What is shown. */
export const view = {
  overview: null,
  queries: [],
  chosen: null,
  detail: null,
  group: "cpu",
  rangeSeconds: 300,
  zoom: null,
  isPaused: false,
};

export async function ask(path) {
  const response = await fetch(path, { headers: { Accept: "application/json" }, credentials: "same-origin" });
  if (response.status === 401) {
    location.assign("/login");
    throw new Error("a token is needed");
  }
  if (!response.ok) {
    const answer = await response.json().catch(() => ({}));
    const error = new Error(answer.error ?? `status ${response.status}`);
    error.status = response.status;
    throw error;
  }
  return response.json();
}

/** Chooses a query, or none. */
export async function choose(id) {
  view.chosen = id;
  view.detail = null;
  history.replaceState(null, "", id ? `#query=${encodeURIComponent(id)}` : "#queries");
  await showChosen(true);
  if (id && view.detail) {
    // The time lines show the query with some time around it.
    const { began_ns, ended_ns } = view.detail;
    const first = Math.min(...(view.overview?.hosts ?? []).map((host) => host.span_ns?.[0] ?? Infinity));
    if (ended_ns && ended_ns > first) {
      const margin = Math.max((ended_ns - began_ns) * 0.5, 5e9);
      view.zoom = [began_ns - margin, ended_ns + margin];
    }
  }
  showQueries(view);
  await showTimelines(view);
}

async function showChosen(isNew) {
  if (view.chosen) {
    try {
      view.detail = await ask(`/api/queries/${encodeURIComponent(view.chosen)}`);
    } catch (error) {
      if (isNew) live(`cannot show the query: ${error.message}`, "bad");
    }
  }
  showDetail(view, isNew);
}

/** The query of the page's address; null without one, or if the address was cut. */
function linkedQuery() {
  const linked = location.hash.match(/^#query=(.+)$/);
  try {
    return linked && decodeURIComponent(linked[1]);
  } catch {
    return null;
  }
}

function live(text, state) {
  const node = document.getElementById("live");
  node.textContent = text;
  node.className = `live ${state}`;
}

function showSummary(overview) {
  const { queries, recorder, hosts, collector } = overview;
  const liveHosts = hosts.filter((host) => host.state === "live").length;
  const lost = hosts.reduce((sum, host) => sum + host.datagrams.lost, 0);
  const received = hosts.reduce((sum, host) => sum + host.datagrams.received, 0);
  // The first datagrams of each agent are unconfirmed, which is no fault.
  const rejected = collector.forged + collector.malformed + collector.old_runs + collector.refused;
  const tile = (value, name, note, isBad) =>
    element("div", { class: isBad ? "tile bad" : "tile" }, element("strong", {}, value), element("span", {}, name), element("small", {}, note));
  const notAssessed = queries.not_assessed ? `, ${queries.not_assessed} not assessed` : "";
  replace(
    document.getElementById("summary"),
    tile(`${liveHosts} of ${hosts.length}`, "hosts live", overview.own_host ? `coordinator ${overview.own_host}` : "", liveHosts < hosts.length),
    tile(String(recorder.queries_running), "queries running", `${recorder.queries_waiting} wait for samples`),
    tile(String(queries.ended), "queries ended", `${queries.failed} failed${notAssessed}`),
    tile(String(lost), "datagrams lost", received + lost ? `${((lost / (received + lost)) * 100).toFixed(2)}% of those sent, ${rejected} rejected` : "", lost / (received + lost || 1) > 0.05),
    tile(bytes(recorder.sample_bytes), "samples in memory", `limit ${bytes(recorder.sample_bytes_max)}`),
  );
  const { history } = overview;
  const notice = document.getElementById("history");
  notice.hidden = !history || (!history.error && !history.lost);
  // Only a change is announced.
  const text = notice.hidden ? "" : `${history.error ? `Samples are not kept on disk at the moment: ${history.error}. ` : ""}${history.lost} samples are not on disk.`;
  if (notice.textContent !== text) notice.textContent = text;
  const dropped = recorder.arrivals_dropped + recorder.samples_refused;
  document.getElementById("footer").textContent =
    `${recorder.queries_kept} of at most ${recorder.queries_max} queries kept, ${queries.forgotten} forgotten.` +
    (dropped ? ` ${dropped} samples or queries had no room.` : "");
}

async function refresh() {
  try {
    let scaling;
    [view.overview, view.queries, scaling] = await Promise.all([ask("/api/overview"), ask(`/api/queries?limit=${QUERIES_MAX}`), ask("/api/scaling")]);
    showSummary(view.overview);
    showHosts(view.overview);
    showQueries(view);
    showScaling(scaling);
    const isOpen = view.detail && ["running", "waiting"].includes(view.detail.state);
    if (view.chosen && (isOpen || !view.detail)) await showChosen(false);
    await showTimelines(view);
    live("live", "good");
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    live(`no answer: ${error.message}`, "bad");
  }
}

async function run() {
  for (;;) {
    if (!view.isPaused && !document.hidden) await refresh();
    await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
  }
}

const pause = document.getElementById("pause");
pause.addEventListener("click", () => {
  view.isPaused = !view.isPaused;
  pause.setAttribute("aria-pressed", String(view.isPaused));
  pause.textContent = view.isPaused ? "Go on" : "Pause";
  if (view.isPaused) live("paused", "");
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && view.chosen) choose(null);
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !view.isPaused) refresh();
});

setUpTimelines(view);
setUpQueries(view, choose);
const linked = linkedQuery();
if (linked) choose(linked);
run();
