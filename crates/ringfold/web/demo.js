// An invented run of so many peers, to try the page: /?demo=200

/** Calls `onStatus` twice a second. */
export function demo(count, onStatus) {
  const random = generator(7);
  const names = Array.from({ length: count }, (_, index) => `node-${String(index).padStart(3, "0")}`);
  const speeds = names.map(() => (7 + 4 * random()) * 1e8);
  speeds[Math.floor(count / 3)] = 4e7;
  const history = Array.from({ length: 300 }, (_, index) => second(index, random));
  const events = Array.from({ length: 12 }, (_, index) => event(names, random, Date.now() - 4000 * (12 - index)));
  let tick = 0;
  const next = () => {
    tick += 1;
    if (tick % 2 === 0) {
      history.push(second(300 + tick / 2, random));
      history.shift();
    }
    if (tick % 8 === 1) events.push(event(names, random, Date.now()));
    onStatus(status(names, speeds, history.slice(), events.slice(-200), tick, random));
  };
  next();
  return setInterval(next, 500);
}

function second(index, random) {
  const stalled = index % 97 < 4;
  const operations = stalled ? 0 : 18 + Math.floor(6 * random());
  return { operations, aborted: index % 97 === 4 ? 2 : 0, bytes: operations * 5e7, step_s: stalled ? null : 0.05 + 0.02 * random() };
}

function event(names, random, time) {
  const name = names[Math.floor(names.length * random())];
  const isBad = random() < 0.4;
  const text = isBad ? `the connection of ${name} ended: it may resume` : `${name} reconnected`;
  return { time: new Date(time).toISOString(), level: isBad ? "warn" : "info", text };
}

function status(names, speeds, history, events, tick, random) {
  const lost = tick % names.length;
  const late = (tick + Math.floor(names.length / 2)) % names.length;
  const peers = names.map((name, index) => ({
    name,
    id: index.toString(16).padStart(32, "0"),
    address: `10.0.${Math.floor(index / 250)}.${1 + (index % 250)}:48148`,
    group: 0,
    replica: null,
    membership: "member",
    state: index === lost ? "disconnected" : index === late ? "computing" : "in all-reduce tag 3",
    call: index === lost || index === late ? null : "all-reduce tag 3",
    call_s: index === lost || index === late ? null : 4.2 + random(),
    fetched_percent: index % 67 === 5 ? (3 * tick) % 100 : null,
    heard_s: index === lost ? 1.4 : random(),
    connected: index !== lost,
    revision: 1200,
  }));
  const waits = [{
    text: `${names.length - 1} peers wait in all_reduce tag 3 for ${names[late]}`,
    group: 0,
    call: "all_reduce tag 3",
    waited_s: 4.2,
    waiting: names.filter((_, index) => index !== late),
    missing: [{ name: names[late], heard_s: 0.3, waits_in: null }],
  }];
  return {
    verdict: `waiting for ${names[late]} for 4 s: it has not called all_reduce tag 3 (last heard 0.3 s ago: alive, computing)`,
    health: "degraded",
    epoch: 12,
    groups: [{ group: 0, epoch: 12, stage: "open", members: names.length, pending: 0, revision: 1200, operations: 1 }],
    peers,
    ring: names.map((from, index) => ({
      group: 0,
      from,
      to: names[(index + 1) % names.length],
      bytes_per_s: Math.round(speeds[index]),
      round_trip_s: 0.0004,
    })),
    waits,
    draining: false,
    masters: [],
    master: { addresses: ["10.0.0.1:48148"], version: "demo", active: true, position: 1, masters: [], active_position: 1, uptime_s: 4000 + tick / 2, pid: 1 },
    throughput: { operations_per_s: 20.4, bytes_per_s: 1.02e9, step_s: 0.061, operations_total: 48123 + 10 * tick, aborted_total: 7, bytes_total: 2.4e12 },
    history,
    events,
    time: new Date().toISOString(),
  };
}

/** The same numbers each time. */
function generator(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 4294967296;
  };
}
