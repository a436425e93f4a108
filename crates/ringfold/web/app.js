// The web page of a master: draws what /api/events sends.

import { Connection } from "./connection.js";
import { bytes, plural, rate, seconds, setText, stepTime } from "./format.js";
import { Operator } from "./operator.js";
import { Plot } from "./plot.js";
import { Ring } from "./ring.js";
import { Departures, Events, Peers, showMasters, showWaits } from "./tables.js";

const DEPARTED_NAMED = 3;

const by = (id) => document.getElementById(id);

const ring = new Ring(by("ring"), by("hint"), by("legend-bars"));
const plots = [
  new Plot(by("plot-bytes"), { value: (second) => second.bytes, format: rate, colour: "--busy", marks: (second) => second.aborted }),
  new Plot(by("plot-step"), { value: (second) => second.step_s, format: stepTime, colour: "--fetch" }),
];
const events = new Events(by("events"), by("events-level"), by("events-filter"));
const operator = new Operator(
  () => schedule(),
  () => connection.restart(),
);
const peers = new Peers(
  { head: by("peers-head"), body: by("peers"), note: by("peers-note"), filter: by("peers-filter") },
  (peer) => operator.confirmEvict(peer),
);
const connection = new Connection(show, showLink);
const departures = new Departures();

let status = null;
let departed = [];
let isScheduled = false;
let link = { state: "connecting", why: "", since: Date.now() };
/** How long drawing took, in milliseconds, for tests. */
window.ringfold = { frames: 0, last: 0, longest: 0 };

function show(next) {
  status = next;
  departed = departures.update(status);
  schedule();
}

/** Draws soon, once for all changes until then. */
function schedule() {
  if (isScheduled) return;
  isScheduled = true;
  // A hidden page draws when it is shown.
  requestAnimationFrame(() => {
    isScheduled = false;
    draw();
  });
}

function draw() {
  if (!status) return;
  const begun = performance.now();
  showVerdict();
  showTiles();
  ring.show(status, departed);
  plots.forEach((plot) => plot.show(status.history));
  showWaits(by("waits"), status);
  peers.show(status, departed, operator.isAdmin);
  events.show(status);
  operator.showDraining(status.draining);
  const { master } = status;
  setText(by("where"), master.addresses[0] || "");
  const several = master.masters.length > 0 ? `, master ${master.position} of ${master.masters.length}` : "";
  showMasters(by("masters"), status);
  setText(by("footer"), `Ringfold ${master.version}${several}, process ${master.pid}, up ${seconds(master.uptime_s)}`);
  const took = performance.now() - begun;
  window.ringfold = { frames: window.ringfold.frames + 1, last: took, longest: Math.max(took, window.ringfold.longest) };
}

function showVerdict() {
  const banner = by("verdict");
  const isLive = link.state === "live" || link.state === "demo";
  document.body.dataset.link = isLive ? "live" : "lost";
  if (isLive) {
    banner.dataset.health = status.health;
    setText(by("verdict-text"), capitalised(status.verdict));
    showDeparted();
    document.title = `${status.health === "healthy" ? "●" : "▲"} ${status.verdict} – Ringfold`;
    return;
  }
  banner.dataset.health = "lost";
  by("departed").hidden = true;
  const age = seconds((Date.now() - link.since) / 1000);
  const what = link.state === "stalled" ? "The master does not answer" : "The connection to the master is lost";
  setText(by("verdict-text"), `${what} for ${age}. What you see is old. Trying again …`);
  by("verdict").title = link.why;
  document.title = "▲ connection lost – Ringfold";
}

/** A run goes on without those that have departed: the verdict does not name them. */
function showDeparted() {
  const names = departed.slice(0, DEPARTED_NAMED).map((peer) => peer.name).join(", ");
  const more = departed.length > DEPARTED_NAMED ? ` and ${departed.length - DEPARTED_NAMED} more` : "";
  by("departed").hidden = departed.length === 0;
  setText(by("departed"), departed.length === 0 ? "" : `departed in the last minute: ${names}${more}`);
}

function showTiles() {
  const { throughput } = status;
  const count = (membership) => status.peers.filter((peer) => peer.membership === membership).length;
  const [members, pending] = [count("member"), count("pending") + count("returned")];
  const lost = status.peers.filter((peer) => !peer.connected).length;
  setText(by("tile-peers"), `${members}`);
  const notes = [pending > 0 ? `${pending} joining` : "", lost > 0 ? `${lost} disconnected` : "", departed.length > 0 ? `${departed.length} departed` : "", status.draining ? "draining" : ""];
  setText(by("tile-peers-note"), notes.filter((note) => note).join(", ") || (members === 1 ? "member" : "members"));
  setText(by("tile-bytes"), rate(throughput.bytes_per_s));
  setText(by("tile-bytes-note"), `${bytes(throughput.bytes_total)} in total`);
  setText(by("tile-step"), throughput.step_s === null ? "–" : stepTime(throughput.step_s));
  setText(by("tile-step-note"), "average of 10 s");
  setText(by("tile-operations"), `${throughput.operations_per_s.toFixed(throughput.operations_per_s < 100 ? 1 : 0)}/s`);
  setText(by("tile-operations-note"), `${throughput.operations_total} committed, ${throughput.aborted_total} failed`);
  setText(by("tile-epoch"), status.epoch === null ? "–" : `${status.epoch}`);
  const stages = new Set(status.groups.map((group) => group.stage));
  const stage = [...stages].find((each) => each !== "open") || (stages.size > 0 ? "open" : "");
  const revision = Math.max(-1, ...status.groups.map((group) => group.revision ?? -1));
  setText(by("tile-epoch-note"), [stage, revision >= 0 ? `revision ${revision}` : ""].filter((text) => text).join(", "));
  const slow = status.ring.filter((edge) => edge.bytes_per_s).sort((a, b) => a.bytes_per_s - b.bytes_per_s)[0];
  const note = slow ? `slowest edge ${slow.from} to ${slow.to}, ${rate(slow.bytes_per_s)}` : "";
  setText(by("ring-note"), note || (status.groups.length > 1 ? plural(status.groups.length, "group") : ""));
}

function showLink(state, why) {
  if (state !== link.state) link = { state, why, since: Date.now() };
  const texts = { live: "live", lost: "connection lost", stalled: "no answer", locked: "locked", demo: "demo" };
  by("link").dataset.state = state;
  setText(by("link"), texts[state]);
  if (state === "locked") {
    by("verdict").dataset.health = "unknown";
    setText(by("verdict-text"), "A token is needed to see this run");
    operator.refresh().then(() => operator.ask());
  } else if (status) {
    schedule();
  } else if (state !== "live") {
    by("verdict").dataset.health = "lost";
    setText(by("verdict-text"), "The master cannot be reached. Trying again …");
  }
}

const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// Light or dark: as the system, until somebody chooses.
const THEME_KEY = "ringfold-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
function applyTheme() {
  const chosen = localStorage.getItem(THEME_KEY);
  document.documentElement.dataset.theme = chosen || (dark.matches ? "dark" : "light");
  schedule();
}
dark.addEventListener("change", applyTheme);
by("theme").addEventListener("click", () => {
  localStorage.setItem(THEME_KEY, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  applyTheme();
});
applyTheme();

new ResizeObserver(() => schedule()).observe(by("ring"));
// The age of a lost connection grows.
setInterval(() => link.state === "live" || schedule(), 1000);

const invented = Number(new URLSearchParams(location.search).get("demo"));
if (invented > 0) {
  const { demo } = await import("./demo.js");
  showLink("demo", "");
  demo(Math.min(invented, 2000), show);
} else {
  operator.refresh();
  connection.run();
}
