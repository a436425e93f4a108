// The table of peers, the list of waits, and the list of events.

import { awaitedNames, clock, element, peerState, plural, seconds, setText } from "./format.js";

/** How long a peer that has departed is still shown. */
const GONE_SHOWN = 15000;

const COLUMNS = [
  { key: "name", title: "Peer", text: (peer) => peer.name },
  { key: "state", title: "State", text: (peer) => peer.state },
  { key: "call_s", title: "Since", number: true, text: (peer) => (peer.call_s === null ? "" : seconds(peer.call_s)) },
  { key: "heard_s", title: "Heard", number: true, text: (peer) => (peer.gone ? "" : `${seconds(peer.heard_s)} ago`) },
  { key: "revision", title: "Revision", number: true, text: (peer) => (peer.revision === null ? "" : `${peer.revision}`) },
  { key: "group", title: "Group", number: true, text: (peer) => `${peer.group}` },
  { key: "address", title: "Address", text: (peer) => peer.address || "" },
];

export class Peers {
  constructor({ head, body, note, filter }, onEvict) {
    Object.assign(this, { head, body, note, filter, onEvict, rows: new Map(), gone: new Map(), known: new Map() });
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

  show(status, isAdmin) {
    this.isAdmin = isAdmin;
    const now = Date.now();
    const here = new Map(status.peers.map((peer) => [peer.id, peer]));
    for (const [id, peer] of this.known) {
      if (!here.has(id)) this.gone.set(id, { ...peer, gone: now, connected: false, call_s: null, state: "departed" });
    }
    for (const [id, peer] of this.gone) {
      if (here.has(id) || now - peer.gone > GONE_SHOWN) this.gone.delete(id);
    }
    this.known = here;
    this.awaited = awaitedNames(status);
    this.groups = new Set(status.peers.map((peer) => peer.group)).size;
    this.draw();
  }

  draw() {
    if (!this.awaited) return;
    const words = this.filter.value.toLowerCase().split(/\s+/).filter((word) => word);
    const all = [...this.known.values(), ...this.gone.values()];
    const matches = (peer) => {
      const text = `${peer.name} ${peer.state} ${peer.address} ${peer.id} ${peer.membership}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
    const shown = all.filter(matches);
    if (this.sort.key) shown.sort((a, b) => this.sort.sign * compare(a[this.sort.key], b[this.sort.key]));
    setText(this.note, shown.length < this.known.size ? `${shown.length} of ${this.known.size}` : "");
    for (const header of this.head.children) {
      if (header.dataset.key === "group") header.hidden = this.groups <= 1;
    }
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
    if (this.empty) setText(this.empty.firstChild, all.length === 0 ? "No peer has joined yet" : "No peer matches the filter");
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
      if (index > 0) setText(row.cells[index], column.text(peer));
      if (column.key === "group") row.cells[index].hidden = this.groups <= 1;
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

/** The calls in which peers wait. */
export function showWaits(list, status) {
  const items = status.waits.map((wait) => {
    const chips = element("div", { className: "chips" });
    chips.append(...wait.waiting.slice(0, WAITING_SHOWN).map((name) => element("span", { className: "chip", textContent: name, title: name })));
    if (wait.waiting.length > WAITING_SHOWN) chips.append(`and ${wait.waiting.length - WAITING_SHOWN} more`);
    const verb = wait.waiting.length === 1 ? "waits" : "wait";
    chips.append(wait.missing.length > 0 ? ` ${verb} for ` : ` ${verb}`);
    for (const missing of wait.missing) {
      const heard = missing.heard_s === null ? "" : `, heard ${seconds(missing.heard_s)} ago`;
      const call = missing.waits_in === null ? "" : `, in ${missing.waits_in}`;
      chips.append(element("span", { className: "chip awaited", title: wait.text, textContent: `${missing.name}${heard}${call}` }));
    }
    const head = element("div", { className: "wait-head", title: wait.text }, element("b", { textContent: seconds(wait.waited_s) }), wait.call);
    if (wait.group !== null && status.groups.length > 1) head.append(element("span", { className: "muted", textContent: `group ${wait.group}` }));
    return element("li", {}, head, chips);
  });
  if (items.length === 0) items.push(element("li", { className: "empty", textContent: "Nobody waits" }));
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
