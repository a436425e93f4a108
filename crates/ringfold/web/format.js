// Numbers and times for people, and elements without HTML: text of peers is only ever set as text.

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

/** A number with three significant digits. */
export function short(value) {
  if (value === 0) return "0";
  const digits = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3;
  return value.toFixed(digits);
}

/** Bytes, with a decimal unit. */
export function bytes(value) {
  let unit = 0;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : short(value)} ${UNITS[unit]}`;
}

export const rate = (value) => `${bytes(value)}/s`;

/** A length of time, in the unit that suits it. */
export function seconds(value) {
  if (value < 0.0995) return `${short(value * 1000)} ms`;
  if (value < 120) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${short(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

/** The time of day here, of a time as in RFC 3339. */
export function clock(text) {
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? "" : time.toTimeString().slice(0, 8);
}

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** An element with properties and children; texts become text. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "data") Object.assign(made.dataset, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Sets the text of an element, if it has changed. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** What a peer is doing, as a colour: ok, busy, late, fetch, pending, bad, gone. */
export function peerState(peer, awaited) {
  if (peer.gone) return "gone";
  if (!peer.connected) return "bad";
  if (peer.membership !== "member" || peer.state === "connecting") return "pending";
  if (awaited.has(peer.name)) return "late";
  if (peer.fetched_percent !== null || peer.state.startsWith("serving")) return "fetch";
  return peer.call === null ? "ok" : "busy";
}

/** The names of peers that others have waited for longer than a moment. */
export function awaitedNames(status) {
  const late = status.waits.filter((wait) => wait.waited_s >= 1);
  return new Set(late.flatMap((wait) => wait.missing.map((missing) => missing.name)));
}
