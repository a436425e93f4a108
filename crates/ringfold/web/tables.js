// The table of peers, the list of waits, and the list of events.

import { ago, awaitedNames, clock, element, longWaits, peerState, plural, seconds, setText } from "./format.js";

/** How long a peer that has departed is still shown, in milliseconds. */
const GONE_SHOWN = 60000;
const GONE_MAX = 50;

/** States that need attention, the most urgent last. Their peers are first in the table. */
const URGENT = ["pending", "late", "bad", "gone"];

const COLUMNS = [
  { key: "name", title: "Peer", text: (peer) => peer.name },
  { key: "state", title: "State", text: (peer) => (peer.gone ? `departed ${ago((Date.now() - peer.gone) / 1000)}` : peer.state) },
  { key: "call_s", title: "In call", number: true, text: (peer) => (peer.call_s === null ? "" : seconds(peer.call_s)) },
  { key: "heard_s", title: "Heard", number: true, text: (peer) => (peer.gone ? "" : ago(peer.heard_s)) },
  { key: "revision", title: "Revision", number: true, text: (peer) => (peer.revision === null ? "" : `${peer.revision}`) },
  { key: "group", title: "Group", number: true, text: (peer) => `${peer.group}` },
  { key: "address", title: "Address", text: (peer) => peer.address || "" },
];

/** The peers that have departed a short time ago. The master does not list them any more. */
export class Departures {
  constructor() {
    Object.assign(this, { gone: new Map(), known: new Map() });
  }

  /** Compares with the last status. Returns those that are still to be shown, the latest first. */
  update(status) {
    const now = Date.now();
    const here = new Map(status.peers.map((peer) => [peer.id, peer]));
    for (const [id, peer] of this.known) {
      if (!here.has(id)) this.gone.set(id, { ...peer, gone: now, connected: false, call: null, call_s: null, state: "departed" });
    }
    const oldest = [...this.gone.values()].slice(0, -GONE_MAX);
    for (const peer of oldest) this.gone.delete(peer.id);
    for (const [id, peer] of this.gone) {
      if (here.has(id) || now - peer.gone > GONE_SHOWN) this.gone.delete(id);
    }
    this.known = here;
    return [...this.gone.values()].reverse();
  }
}

export class Peers {
  constructor({ head, body, note, filter }, onEvict) {
    Object.assign(this, { head, body, note, filter, onEvict, rows: new Map(), departed: [], peers: [] });
    this.sort = { key: null, sign: 1 };
    this.isAdmin = false;
    for (const column of COLUMNS) {
      const button = element("button", { type: "button", textContent: column.title });
      button.addEventListener("click", () => this.sortBy(column.key));
      head.append(element("th", { scope: "col", className: column.number ? "number" : "", data: { key: column.key } }, button));
    }
    head.append(element("th", { scope: "col", ariaLabel: "Actions" }));
    filter.addEventListener("input", () => this.draw());
  }

  sortBy(key) {
    const isSame = this.sort.key === key;
    this.sort = isSame && this.sort.sign < 0 ? { key: null, sign: 1 } : { key, sign: isSame ? -1 : 1 };
    for (const header of this.head.children) {
      if (header.dataset.key === this.sort.key) header.ariaSort = this.sort.sign > 0 ? "ascending" : "descending";
      else header.removeAttribute("aria-sort");
    }
    this.draw();
  }

  show(status, departed, isAdmin) {
    Object.assign(this, { peers: status.peers, departed, isAdmin });
    this.awaited = awaitedNames(status);
    const groups = new Set(status.peers.map((peer) => peer.group)).size;
    this.hidden = new Set();
    if (groups <= 1) this.hidden.add("group");
    if (status.peers.every((peer) => peer.revision === null)) this.hidden.add("revision");
    this.draw();
  }

  draw() {
    if (!this.awaited) return;
    const words = this.filter.value.toLowerCase().split(/\s+/).filter((word) => word);
    const all = [...this.peers, ...this.departed];
    const matches = (peer) => {
      const text = `${peer.name} ${peer.state} ${this.awaited.has(peer.name) ? "awaited" : ""} ${peer.address} ${peer.id} ${peer.membership}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
    const shown = all.filter(matches);
    const urgency = (peer) => URGENT.indexOf(peerState(peer, this.awaited));
    if (this.sort.key) shown.sort((a, b) => this.sort.sign * compare(a[this.sort.key], b[this.sort.key]));
    else shown.sort((a, b) => urgency(b) - urgency(a));
    setText(this.note, words.length > 0 ? `${shown.length} of ${all.length}` : "");
    for (const header of this.head.children) header.hidden = this.hidden.has(header.dataset.key);
    const ids = new Set(shown.map((peer) => peer.id));
    for (const [id, row] of this.rows) {
      if (!ids.has(id)) {
        row.line.remove();
        this.rows.delete(id);
      }
    }
    let before = null;
    for (const peer of shown) {
      const { line } = this.row(peer);
      const expected = before ? before.nextSibling : this.body.firstChild;
      if (expected !== line) this.body.insertBefore(line, expected);
      before = line;
    }
    const isEmpty = shown.length === 0;
    if (isEmpty && !this.empty) {
      this.empty = element("tr", {}, element("td", { className: "empty", colSpan: COLUMNS.length + 1 }));
      this.body.append(this.empty);
    } else if (!isEmpty && this.empty) {
      this.empty.remove();
      this.empty = null;
    }
    if (this.empty) setText(this.empty.firstChild, all.length === 0 ? "No peers" : "No peer matches the filter");
  }

  /** The row of a peer, with its current texts. */
  row(peer) {
    let row = this.rows.get(peer.id);
    if (!row) {
      const cells = COLUMNS.map((column) => element("td", { className: column.number ? "number" : "" }));
      const [dot, name] = [element("i", { className: "dot" }), document.createTextNode("")];
      cells[0].append(dot, name);
      const evict = element("button", { className: "small", textContent: "Evict", type: "button" });
      const line = element("tr", {}, ...cells, element("td", {}, evict));
      row = { line, cells, dot, name, evict };
      evict.addEventListener("click", () => this.onEvict(row.peer));
      this.rows.set(peer.id, row);
    }
    row.peer = peer;
    const state = peerState(peer, this.awaited);
    row.line.dataset.state = row.dot.dataset.state = state;
    row.line.dataset.name = peer.name;
    if (row.name.data !== peer.name) row.name.data = peer.name;
    row.line.title = `${peer.name}, id ${peer.id}`;
    COLUMNS.forEach((column, index) => {
      // Others wait for it, and it is in no call that could be named.
      const isAwaited = column.key === "state" && state === "late" && peer.call === null;
      if (index > 0) setText(row.cells[index], isAwaited ? "awaited" : column.text(peer));
      row.cells[index].hidden = this.hidden.has(column.key);
    });
    row.evict.hidden = !this.isAdmin || Boolean(peer.gone);
    row.evict.ariaLabel = `Evict ${peer.name}`;
    return row;
  }
}

function compare(a, b) {
  // What is missing comes last.
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : a - b;
}

const WAITING_SHOWN = 6;
/** How many awaited peers the master names. */
const MISSING_NAMED = 8;

/** The calls in which peers wait. */
export function showWaits(list, status) {
  const items = longWaits(status).map((wait) => {
    const chips = element("div", { className: "chips" });
    // "and 1 more" would be as long as its name.
    const shown = wait.waiting.length <= WAITING_SHOWN + 1 ? WAITING_SHOWN + 1 : WAITING_SHOWN;
    chips.append(...wait.waiting.slice(0, shown).map((name) => element("span", { className: "chip", textContent: name, title: name })));
    if (wait.waiting.length > shown) chips.append(`and ${wait.waiting.length - shown} more`);
    const verb = wait.waiting.length === 1 ? "waits" : "wait";
    chips.append(wait.missing.length > 0 ? ` ${verb} for ` : ` ${verb}`);
    for (const missing of wait.missing) {
      const heard = missing.heard_s === null ? "" : `, heard ${ago(missing.heard_s)}`;
      const call = missing.waits_in === null ? "" : `, in ${missing.waits_in}`;
      chips.append(element("span", { className: "chip awaited", title: wait.text, textContent: `${missing.name}${heard}${call}` }));
    }
    // The master names only some of them.
    const members = status.groups.filter((group) => wait.group === null || group.group === wait.group);
    const others = members.reduce((sum, group) => sum + group.members, 0) - wait.waiting.length - wait.missing.length;
    if (wait.missing.length >= MISSING_NAMED && others > 0) chips.append(`and ${others} more`);
    const head = element("div", { className: "wait-head", title: wait.text }, element("b", { textContent: seconds(wait.waited_s) }), wait.call);
    if (wait.group !== null && status.groups.length > 1) head.append(element("span", { className: "muted", textContent: `group ${wait.group}` }));
    return element("li", {}, head, chips);
  });
  if (items.length === 0) items.push(element("li", { className: "empty", textContent: "No wait is longer than 1 s" }));
  list.replaceChildren(...items);
}

const LEVELS = ["debug", "info", "warn", "error"];

export class Events {
  constructor(list, level, filter) {
    Object.assign(this, { list, level, filter, events: [], drawn: "" });
    level.addEventListener("change", () => this.draw());
    filter.addEventListener("input", () => this.draw());
  }

  show(status) {
    this.events = status.events;
    this.draw();
  }

  draw() {
    const last = this.events.at(-1);
    const key = JSON.stringify([this.events.length, last?.time, last?.text, this.level.value, this.filter.value]);
    if (key === this.drawn) return;
    this.drawn = key;
    const lowest = LEVELS.indexOf(this.level.value);
    const word = this.filter.value.toLowerCase();
    const shown = this.events.filter((event) => LEVELS.indexOf(event.level) >= lowest && event.text.toLowerCase().includes(word));
    const items = shown.reverse().map((event) =>
      element(
        "li",
        { data: { level: event.level } },
        element("time", { dateTime: event.time, textContent: clock(event.time), title: event.time }),
        element("i", { className: "dot", title: event.level, ariaLabel: event.level }),
        element("span", { textContent: event.text }),
      ),
    );
    const none = this.events.length === 0 ? "Nothing has happened yet" : "No event matches";
    if (items.length === 0) items.push(element("li", { className: "empty", textContent: none }));
    this.list.replaceChildren(...items);
    this.list.ariaLabel = plural(shown.length, "event");
  }
}

/** The masters, if there are several. On one that stands by the active one is a link: its page is on the same port. */
export function showMasters(panel, status) {
  const masters = status.masters || [];
  panel.hidden = masters.length < 2;
  const item = (master) => {
    const times = master.heard_s === null ? "never heard" : `heard ${ago(master.heard_s)}`;
    const text = `${master.position}: ${master.address}, ${master.role}, ${times}${master.behind ? `, ${master.behind} changes behind` : ""}`;
    const host = (master.address || "").replace(/:\d+$/, "");
    const isElsewhere = master.role === "active" && !status.master.active && host !== location.hostname;
    const link = element("a", { href: `${location.protocol}//${host}:${location.port}/`, textContent: text });
    return element("li", { textContent: isElsewhere ? "" : text }, ...(isElsewhere ? [link] : []));
  };
  panel.lastElementChild.replaceChildren(...masters.map(item));
}
