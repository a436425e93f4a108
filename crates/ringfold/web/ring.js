// The rings of all groups, on a canvas: members in the order of the ring, edges with their speeds.

import { ago, awaitedNames, peerState, rate, seconds, setText } from "./format.js";

const COLOURS = { ok: "--ok", busy: "--busy", late: "--late", fetch: "--fetch", pending: "--pending", bad: "--bad", gone: "--bad" };
const LABEL_FONT = "12px system-ui, sans-serif";
const LABELS_MAX = 40;
const SPEEDS_MAX = 14;
/** The length of an edge that has its speed beside it. */
const NUMBER_ROOM = 80;
const ARROWS_MAX = 48;
/** Of more members than LABELS_MAX so many are named, beside those that need attention. */
const NAMED_OF_MANY = 16;
/** Slow edges whose speed is written beside their bar. */
const SLOW_NAMED = 5;

/** A canvas at the resolution of the screen, cleared, and the colours of the page. */
export function context2d(canvas) {
  const [width, height, scale] = [canvas.clientWidth, canvas.clientHeight, window.devicePixelRatio || 1];
  const [pixels, rows] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== pixels || canvas.height !== rows) {
    canvas.width = pixels;
    canvas.height = rows;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  const style = getComputedStyle(document.documentElement);
  return { context, width, height, palette: (name) => style.getPropertyValue(name) };
}

export class Ring {
  /** `legend` explains the bars of many edges. */
  constructor(canvas, hint, legend) {
    Object.assign(this, { canvas, hint, legend, status: null, departed: [], nodes: [], hovered: null });
    canvas.addEventListener("pointermove", (event) => this.hover(event.offsetX, event.offsetY));
    canvas.addEventListener("pointerleave", () => this.hover(-1e9, -1e9));
  }

  show(status, departed) {
    Object.assign(this, { status, departed });
    this.draw();
    if (this.hovered) this.showHint();
  }

  hover(x, y) {
    const distance = (node) => Math.hypot(node.x - x, node.y - y);
    const nearest = this.nodes.reduce((best, node) => (!best || distance(node) < distance(best) ? node : best), null);
    const found = nearest && distance(nearest) < nearest.radius + 12 ? nearest.peer.id : null;
    if (found !== this.hovered) {
      this.hovered = found;
      this.draw();
    }
    this.showHint();
  }

  draw() {
    if (!this.status) return;
    const { context, width, height, palette } = context2d(this.canvas);
    this.nodes = [];
    this.legend.hidden = true;
    const groups = layout(this.status, this.departed);
    const awaited = awaitedNames(this.status);
    const columns = Math.ceil(Math.sqrt(groups.length * (width / Math.max(height, 1))));
    const used = Math.max(1, Math.min(columns, groups.length));
    const rows = Math.max(1, Math.ceil(groups.length / used));
    groups.forEach((group, index) => {
      const cell = {
        x: (index % used) * (width / used),
        y: Math.floor(index / used) * (height / rows),
        width: width / used,
        height: height / rows,
      };
      this.drawGroup(context, palette, group, cell, awaited, groups.length);
    });
    if (groups.length === 0) {
      context.fillStyle = palette("--muted");
      context.font = "14px system-ui, sans-serif";
      context.textAlign = "center";
      const none = this.departed.length > 0 ? "All peers have departed" : "No peer has joined yet";
      context.fillText(this.status.master.active ? none : this.status.verdict, width / 2, height / 2);
    }
    const members = this.status.peers.filter((peer) => peer.membership === "member").length;
    this.canvas.setAttribute("aria-label", `The ring of ${members} members. The table below has the same data.`);
  }

  drawGroup(context, palette, group, cell, awaited, groups) {
    const { members, edges, pending, departed } = group;
    const count = members.length;
    const hasLabels = groups <= 4;
    const labelEvery = count <= LABELS_MAX ? 1 : Math.ceil(count / NAMED_OF_MANY);
    const rows = [
      { text: "waiting to join", state: "pending", peers: pending },
      { text: "departed", state: "gone", peers: departed },
    ].filter((row) => row.peers.length > 0);
    const rowsHeight = rows.length > 0 ? 12 + 22 * rows.length : 0;
    context.font = LABEL_FONT;
    const widest = Math.max(0, ...members.map((peer) => context.measureText(peer.name).width));
    const margin = hasLabels ? Math.min(widest + 30, cell.width * 0.28) : 26;
    const radius = Math.max(20, Math.min(cell.width / 2 - margin, (cell.height - rowsHeight) / 2 - (hasLabels ? 34 : 22)));
    const centre = { x: cell.x + cell.width / 2, y: cell.y + (cell.height - rowsHeight) / 2 };
    const size = Math.max(3, Math.min(13, (radius * Math.PI) / Math.max(count, 1) / (count <= ARROWS_MAX ? 1.9 : 1.25)));
    const nodes = members.map((peer, index) => {
      const angle = -Math.PI / 2 + (2 * Math.PI * index) / Math.max(count, 1);
      const [dx, dy] = count === 1 ? [0, 0] : [Math.cos(angle), Math.sin(angle)];
      return { peer, angle, dx, dy, x: centre.x + radius * dx, y: centre.y + radius * dy, radius: size, state: peerState(peer, awaited) };
    });
    this.nodes.push(...nodes);
    const taken = [];
    if (count > 2 || radius > 110) drawCentre(context, palette, centre, group, radius, taken);
    // Bars where numbers would not fit between the nodes.
    const isMeasured = edges.some((edge) => edge.bytes_per_s);
    const hasBars = isMeasured && count > 2 && (count > SPEEDS_MAX || 2 * radius * Math.sin(Math.PI / count) < NUMBER_ROOM);
    this.drawEdges(context, palette, nodes, edges, centre, size, hasBars ? null : taken);
    if (hasBars) drawSpeedBars(context, palette, nodes, edges, centre, radius - size - 6, taken);
    if (hasBars) this.legend.hidden = false;
    for (const node of nodes) this.drawNode(context, palette, node);
    // Those that matter come first; a label that would cover another one is left out.
    const isImportant = (node) => node.state === "bad" || node.state === "late" || node.peer.id === this.hovered;
    for (const node of nodes.filter(isImportant)) drawLabel(context, palette, node, size, cell, taken);
    const isNamed = (node, index) => hasLabels && index % labelEvery === 0 && !isImportant(node);
    for (const node of nodes.filter(isNamed)) drawLabel(context, palette, node, size, cell, taken);
    rows.forEach((row, index) => this.drawRow(context, palette, row, cell, cell.y + cell.height - 14 - 22 * index));
  }

  /** Edges, with their speeds where no text is in `taken`; without speeds if that is null. */
  drawEdges(context, palette, nodes, edges, centre, size, taken) {
    const { slow } = speedsOf(edges);
    edges.forEach((edge, index) => {
      const [from, to] = [nodes[index], nodes[(index + 1) % nodes.length]];
      if (!from || !to || from === to) return;
      const isSlow = slow.has(edge);
      const isHovered = this.hovered === from.peer.id || this.hovered === to.peer.id;
      context.strokeStyle = context.fillStyle = palette(isSlow ? "--slow" : isHovered ? "--accent" : "--edge");
      context.lineWidth = (isSlow ? 2.5 : 1.5) + (isHovered ? 1 : 0);
      context.setLineDash(edge.bytes_per_s ? [] : [4, 4]);
      const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
      const [ux, uy] = [(to.x - from.x) / length, (to.y - from.y) / length];
      // Two peers have one edge in each direction.
      const bend = nodes.length === 2 ? -0.5 * length : 0;
      const middle = { x: (from.x + to.x) / 2 - uy * bend, y: (from.y + to.y) / 2 + ux * bend };
      context.beginPath();
      context.moveTo(from.x, from.y);
      context.quadraticCurveTo(middle.x, middle.y, to.x, to.y);
      context.stroke();
      context.setLineDash([]);
      if (nodes.length <= ARROWS_MAX) {
        const [ex, ey] = [to.x - middle.x, to.y - middle.y];
        const end = Math.hypot(ex, ey) || 1;
        arrow(context, to.x - (ex / end) * (size + 3), to.y - (ey / end) * (size + 3), Math.atan2(ey, ex), Math.max(5, size * 0.7));
      }
      if (taken && edge.bytes_per_s) {
        // Inside of the ring; between two nodes outside of the curve, beside the text in the middle.
        const inward = nodes.length === 2 ? -34 : 26;
        const at = { x: (from.x + 2 * middle.x + to.x) / 4, y: (from.y + 2 * middle.y + to.y) / 4 };
        const away = Math.hypot(centre.x - at.x, centre.y - at.y) || 1;
        const shift = Math.min(inward, 0.35 * away + 8);
        context.font = "11px system-ui, sans-serif";
        const [dx, dy] = [(centre.x - at.x) / away, (centre.y - at.y) / away];
        const [x, y] = [at.x + dx * shift * 1.3, at.y + dy * shift * 0.8];
        drawCentred(context, palette(isSlow ? "--slow" : "--muted"), rate(edge.bytes_per_s), x, y, taken);
      }
    });
  }

  drawNode(context, palette, node) {
    const colour = palette(COLOURS[node.state] || "--muted");
    const isHollow = node.state === "pending" || node.state === "gone";
    const isHovered = this.hovered === node.peer.id;
    if (node.state === "late" || node.state === "bad" || isHovered) {
      context.globalAlpha = 0.28;
      context.fillStyle = isHovered ? palette("--accent") : colour;
      disc(context, node.x, node.y, node.radius + 5);
      context.globalAlpha = 1;
    }
    context.fillStyle = isHollow ? palette("--card") : colour;
    disc(context, node.x, node.y, node.radius);
    if (isHollow) {
      context.strokeStyle = colour;
      context.lineWidth = 2;
      context.stroke();
    }
    if (node.state === "bad" && node.radius >= 5) {
      // Not by colour alone.
      context.strokeStyle = palette("--card");
      context.lineWidth = 2;
      const arm = node.radius * 0.45;
      context.beginPath();
      context.moveTo(node.x - arm, node.y - arm);
      context.lineTo(node.x + arm, node.y + arm);
      context.moveTo(node.x + arm, node.y - arm);
      context.lineTo(node.x - arm, node.y + arm);
      context.stroke();
    }
    if (node.state === "fetch" && node.radius >= 5) {
      context.lineWidth = 3;
      context.strokeStyle = palette("--grid");
      context.beginPath();
      context.arc(node.x, node.y, node.radius + 4, 0, 2 * Math.PI);
      context.stroke();
      context.strokeStyle = colour;
      context.beginPath();
      const done = (node.peer.fetched_percent || 0) / 100;
      context.arc(node.x, node.y, node.radius + 4, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * done);
      context.stroke();
    }
  }

  /** Peers that are not in the ring, below it. */
  drawRow(context, palette, { text, state, peers }, cell, y) {
    const names = peers.length <= 3 ? ` ${peers.map((peer) => peer.name).join(", ")}` : ` ${peers.length}`;
    const colour = palette(COLOURS[state]);
    context.font = LABEL_FONT;
    const label = clip(context, `${text}:${names}`, cell.width - 60);
    const width = context.measureText(label).width;
    const step = Math.max(3, Math.min(20, (cell.width - width - 40) / peers.length));
    const begin = cell.x + (cell.width - width - 12 - step * peers.length) / 2;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = colour;
    context.fillText(label, begin, y);
    peers.forEach((peer, index) => {
      const isLost = state === "pending" && !peer.connected;
      const x = begin + width + 18 + step * index;
      const node = { peer, x, y, radius: Math.min(6, step / 2), state: isLost ? "bad" : state };
      this.nodes.push(node);
      this.drawNode(context, palette, node);
    });
  }

  showHint() {
    const node = this.nodes.find((each) => each.peer.id === this.hovered);
    this.hint.hidden = !node;
    if (!node) return;
    const { peer } = node;
    const edge = this.status.ring.find((each) => each.from === peer.name && each.group === peer.group);
    const lines = [
      `${peer.state}${peer.call_s === null ? "" : ` for ${seconds(peer.call_s)}`}`,
      peer.gone ? "" : `heard ${ago(peer.heard_s)}`,
      peer.address || "",
      edge && edge.bytes_per_s ? `sends ${rate(edge.bytes_per_s)} to ${edge.to}` : "",
      edge && edge.round_trip_s ? `round trip ${seconds(edge.round_trip_s)}` : "",
    ].filter((text) => text);
    const title = document.createElement("b");
    setText(title, peer.name);
    this.hint.replaceChildren(title, ...lines.flatMap((text) => [document.createTextNode(text), document.createElement("br")]));
    const right = node.x > this.canvas.clientWidth / 2;
    this.hint.style.left = `${right ? Math.max(0, node.x - this.hint.offsetWidth - 16) : node.x + 16}px`;
    this.hint.style.top = `${Math.max(0, Math.min(node.y - 20, this.canvas.clientHeight - this.hint.offsetHeight))}px`;
  }
}

/** The members of each group in the order of its ring, its edges, and the peers that wait to join. */
function layout(status, departed) {
  const groups = new Map();
  for (const peer of status.peers) {
    if (!groups.has(peer.group)) groups.set(peer.group, { number: peer.group, peers: [], edges: [] });
    groups.get(peer.group).peers.push(peer);
  }
  for (const edge of status.ring) groups.get(edge.group)?.edges.push(edge);
  return [...groups.values()].map((group) => {
    const members = group.peers.filter((peer) => peer.membership === "member");
    const left = new Set(members);
    const inRing = group.edges.map((edge) => {
      // Names need not be unique.
      const peer = members.find((each) => each.name === edge.from && left.has(each));
      left.delete(peer);
      return peer;
    });
    const isWhole = inRing.length > 0 && inRing.every((peer) => peer) && left.size === 0;
    const info = status.groups.find((each) => each.group === group.number);
    return {
      number: group.number,
      info,
      isOnly: groups.size === 1,
      members: isWhole ? inRing : members,
      edges: isWhole ? group.edges : [],
      pending: group.peers.filter((peer) => peer.membership !== "member"),
      departed: departed.filter((peer) => peer.group === group.number),
    };
  });
}

/** The fastest speed, and the edges that are much slower than most. */
function speedsOf(edges) {
  const measured = edges.filter((edge) => edge.bytes_per_s).sort((a, b) => a.bytes_per_s - b.bytes_per_s);
  const median = measured[Math.floor(measured.length / 2)]?.bytes_per_s || 0;
  const slow = new Set(measured.filter((edge) => edge.bytes_per_s < 0.5 * median));
  return { fastest: measured.at(-1)?.bytes_per_s || 0, slow };
}

/** The speeds of many edges: bars inside of the ring, the longest for the fastest edge. Slow ones have their number, too. */
function drawSpeedBars(context, palette, nodes, edges, centre, outer, taken) {
  const { fastest, slow } = speedsOf(edges);
  const longest = Math.min(0.2 * outer, 44);
  if (fastest === 0 || outer < 60) return;
  const named = new Set([...slow].slice(0, SLOW_NAMED));
  context.strokeStyle = palette("--line");
  context.lineWidth = 1;
  context.beginPath();
  context.arc(centre.x, centre.y, outer, 0, 2 * Math.PI);
  context.stroke();
  context.lineWidth = Math.max(1, Math.min(5, (0.62 * 2 * Math.PI * (outer - longest)) / nodes.length));
  context.lineCap = "butt";
  edges.forEach((edge, index) => {
    if (!edge.bytes_per_s || !nodes[index]) return;
    const angle = nodes[index].angle + Math.PI / nodes.length;
    const [dx, dy] = [Math.cos(angle), Math.sin(angle)];
    const bar = (length) => {
      context.beginPath();
      context.moveTo(centre.x + dx * outer, centre.y + dy * outer);
      context.lineTo(centre.x + dx * (outer - length), centre.y + dy * (outer - length));
      context.stroke();
    };
    const isSlow = slow.has(edge);
    context.strokeStyle = palette(isSlow ? "--slow" : "--edge");
    if (isSlow) {
      context.globalAlpha = 0.3;
      bar(longest);
      context.globalAlpha = 1;
    } else {
      context.globalAlpha = 0.55;
    }
    bar(Math.max(2, (longest * edge.bytes_per_s) / fastest));
    context.globalAlpha = 1;
    if (!named.has(edge)) return;
    const text = rate(edge.bytes_per_s);
    context.font = "600 11px system-ui, sans-serif";
    const half = context.measureText(text).width / 2;
    const reach = outer - longest - 8;
    const [x, y] = [centre.x + dx * (reach - half * Math.abs(dx)), centre.y + dy * (reach - 6 * Math.abs(dy))];
    drawCentred(context, palette("--slow"), text, x, y, taken);
  });
}

/** Writes a text around a point, unless it would cover another one. */
function drawCentred(context, colour, text, x, y, taken) {
  const half = context.measureText(text).width / 2;
  const box = { left: x - half, right: x + half, top: y - 7, bottom: y + 7 };
  if (taken.some((other) => covers(box, other))) return;
  taken.push(box);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillStyle = colour;
  context.fillText(text, x, y);
}

const covers = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

function drawCentre(context, palette, centre, group, radius, taken) {
  if (radius < 60 || group.members.length < 2) return;
  const { info } = group;
  const lines = [`${group.members.length} members`];
  if (!group.isOnly) lines.push(`group ${group.number}`);
  if (info && info.stage !== "open") lines.push(info.stage);
  else if (info && info.operations > 0) lines.push(`${info.operations} in flight`);
  lines.forEach((text, index) => {
    context.font = index === 0 ? "600 15px system-ui, sans-serif" : "12px system-ui, sans-serif";
    const y = centre.y + (index - (lines.length - 1) / 2) * 20;
    drawCentred(context, palette(index === 0 ? "--text" : "--muted"), text, centre.x, y, taken);
  });
}

function drawLabel(context, palette, node, size, cell, taken) {
  const gap = size + 8;
  const isSide = Math.abs(node.dx) > 0.25;
  const isAlone = node.dx === 0 && node.dy === 0;
  const isAbove = node.dy < 0 || isAlone;
  const isMarked = node.state === "bad" || node.state === "late";
  context.font = isMarked ? `600 ${LABEL_FONT}` : LABEL_FONT;
  const x = node.x + (isSide ? Math.sign(node.dx) * gap : 0);
  // Beside a ring of many members a label must not cover the next ones.
  const y = node.y + (isSide ? node.dy * Math.max(0, 14 - size) : isAbove ? -gap : gap);
  const room = isSide ? (node.dx > 0 ? cell.x + cell.width - x : x - cell.x) - 4 : cell.width * 0.4;
  const text = clip(context, node.peer.name, room);
  const width = context.measureText(text).width;
  const left = isSide ? (node.dx > 0 ? x : x - width) : x - width / 2;
  const box = { left, right: left + width, top: isSide ? y - 7 : isAbove ? y - 14 : y, bottom: isSide ? y + 7 : isAbove ? y : y + 14 };
  if (taken.some((other) => covers(box, other))) return;
  taken.push(box);
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = palette(node.state === "bad" ? "--bad" : node.state === "late" ? "--late" : "--text");
  context.fillText(text, left, (box.top + box.bottom) / 2);
}

/** A text that is not wider than this. Its middle is left out: names often differ at their end. */
function clip(context, text, width) {
  const cut = (kept) => `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(text.length - Math.floor(kept / 2))}`;
  if (context.measureText(text).width <= width) return text;
  let kept = text.length - 1;
  while (kept > 1 && context.measureText(cut(kept)).width > width) kept -= 1;
  return cut(kept);
}

function disc(context, x, y, radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
}

function arrow(context, x, y, angle, size) {
  context.save();
  context.translate(x, y);
  context.rotate(angle);
  context.beginPath();
  context.moveTo(0, 0);
  context.lineTo(-size, -size * 0.55);
  context.lineTo(-size, size * 0.55);
  context.closePath();
  context.fill();
  context.restore();
}
