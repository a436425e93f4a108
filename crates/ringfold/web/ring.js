// The rings of all groups, on a canvas: members in the order of the ring, edges with their speeds.

import { awaitedNames, peerState, rate, seconds, setText } from "./format.js";

const LABELS_MAX = 40;
const SPEEDS_MAX = 14;
const ARROWS_MAX = 48;

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
  constructor(canvas, hint) {
    Object.assign(this, { canvas, hint, status: null, nodes: [], hovered: null });
    canvas.addEventListener("pointermove", (event) => this.hover(event.offsetX, event.offsetY));
    canvas.addEventListener("pointerleave", () => this.hover(-1e9, -1e9));
  }

  show(status) {
    this.status = status;
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
    const groups = layout(this.status);
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
      context.fillText(this.status.master.active ? "No peer has joined yet" : "This master stands by", width / 2, height / 2);
    }
    const members = this.status.peers.filter((peer) => peer.membership === "member").length;
    this.canvas.setAttribute("aria-label", `The ring of ${members} members. The table below has the same data.`);
  }

  drawGroup(context, palette, group, cell, awaited, groups) {
    const { members, edges, pending } = group;
    const count = members.length;
    const labels = count <= LABELS_MAX && groups <= 4;
    const pendingRows = pending.length > 0 ? 34 : 0;
    const margin = labels ? Math.min(110, cell.width * 0.2) : 26;
    const radius = Math.max(20, Math.min(cell.width / 2 - margin, (cell.height - pendingRows) / 2 - (labels ? 34 : 22)));
    const centre = { x: cell.x + cell.width / 2, y: cell.y + (cell.height - pendingRows) / 2 };
    const size = Math.max(3, Math.min(13, (radius * Math.PI) / Math.max(count, 1) / (count <= ARROWS_MAX ? 1.9 : 1.25)));
    const nodes = members.map((peer, index) => {
      const angle = -Math.PI / 2 + (2 * Math.PI * index) / Math.max(count, 1);
      const [dx, dy] = count === 1 ? [0, 0] : [Math.cos(angle), Math.sin(angle)];
      return { peer, angle, dx, dy, x: centre.x + radius * dx, y: centre.y + radius * dy, radius: size, state: peerState(peer, awaited) };
    });
    this.nodes.push(...nodes);
    this.drawEdges(context, palette, nodes, edges, centre, size);
    for (const node of nodes) this.drawNode(context, palette, node);
    if (count > 1) drawCentre(context, palette, centre, group, radius);
    // Those that matter come first; a label that would cover another one is left out.
    const isImportant = (node) => node.state === "bad" || node.state === "late" || node.peer.id === this.hovered;
    const taken = [];
    for (const node of nodes.filter(isImportant)) drawLabel(context, palette, node, size, cell, taken);
    if (labels) for (const node of nodes.filter((each) => !isImportant(each))) drawLabel(context, palette, node, size, cell, taken);
    this.drawPending(context, palette, pending, cell);
  }

  drawEdges(context, palette, nodes, edges, centre, size) {
    const speeds = edges.map((edge) => edge.bytes_per_s).filter((speed) => speed).sort((a, b) => a - b);
    const median = speeds[Math.floor(speeds.length / 2)] || 0;
    edges.forEach((edge, index) => {
      const [from, to] = [nodes[index], nodes[(index + 1) % nodes.length]];
      if (!from || !to || from === to) return;
      const isSlow = edge.bytes_per_s && edge.bytes_per_s < 0.5 * median;
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
      if (nodes.length > ARROWS_MAX && isSlow) {
        // Between many nodes an edge is too short to be seen: a mark outside of the ring.
        const [mx, my] = [middle.x - centre.x, middle.y - centre.y];
        const out = 1 + (size + 6) / Math.hypot(mx, my);
        context.lineWidth = 4;
        context.beginPath();
        context.moveTo(centre.x + out * (from.x - centre.x), centre.y + out * (from.y - centre.y));
        context.lineTo(centre.x + out * (to.x - centre.x), centre.y + out * (to.y - centre.y));
        context.stroke();
      }
      if (nodes.length <= ARROWS_MAX) {
        const [ex, ey] = [to.x - middle.x, to.y - middle.y];
        const end = Math.hypot(ex, ey) || 1;
        arrow(context, to.x - (ex / end) * (size + 3), to.y - (ey / end) * (size + 3), Math.atan2(ey, ex), Math.max(5, size * 0.7));
      }
      if (nodes.length <= SPEEDS_MAX && edge.bytes_per_s && length > 80) {
        // Inside of the ring; between two nodes outside of the curve, beside the text in the middle.
        const inward = nodes.length === 2 ? -34 : 26;
        const at = { x: (from.x + 2 * middle.x + to.x) / 4, y: (from.y + 2 * middle.y + to.y) / 4 };
        const away = Math.hypot(centre.x - at.x, centre.y - at.y) || 1;
        const shift = Math.min(inward, 0.35 * away + 8);
        context.font = "11px system-ui, sans-serif";
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillStyle = palette(isSlow ? "--slow" : "--muted");
        const [dx, dy] = [(centre.x - at.x) / away, (centre.y - at.y) / away];
        context.fillText(rate(edge.bytes_per_s), at.x + dx * shift * 1.3, at.y + dy * shift * 0.8);
      }
    });
  }

  drawNode(context, palette, node) {
    const colours = { ok: "--ok", busy: "--busy", late: "--late", fetch: "--fetch", pending: "--pending", bad: "--bad" };
    const colour = palette(colours[node.state] || "--muted");
    const isHovered = this.hovered === node.peer.id;
    if (node.state === "late" || node.state === "bad" || isHovered) {
      context.globalAlpha = 0.28;
      context.fillStyle = isHovered ? palette("--accent") : colour;
      disc(context, node.x, node.y, node.radius + 5);
      context.globalAlpha = 1;
    }
    context.fillStyle = node.state === "pending" ? palette("--card") : colour;
    disc(context, node.x, node.y, node.radius);
    if (node.state === "pending") {
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

  drawPending(context, palette, pending, cell) {
    if (pending.length === 0) return;
    const text = `waiting to join: ${pending.length}`;
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = palette("--pending");
    const textWidth = context.measureText(text).width;
    const step = Math.max(3, Math.min(22, (cell.width - textWidth - 40) / pending.length));
    const begin = cell.x + (cell.width - textWidth - 12 - step * pending.length) / 2;
    const y = cell.y + cell.height - 14;
    context.fillText(text, begin, y);
    pending.forEach((peer, index) => {
      const state = peer.connected ? "pending" : "bad";
      const node = { peer, x: begin + textWidth + 20 + step * index, y, radius: Math.min(7, step / 2), state };
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
      `heard ${seconds(peer.heard_s)} ago`,
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
function layout(status) {
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
    };
  });
}

function drawCentre(context, palette, centre, group, radius) {
  if (radius < 60) return;
  const { info } = group;
  const lines = [`${group.members.length} members`];
  if (!group.isOnly) lines.push(`group ${group.number}`);
  if (info && info.stage !== "open") lines.push(info.stage);
  else if (info && info.operations > 0) lines.push(`${info.operations} in flight`);
  context.textAlign = "center";
  context.textBaseline = "middle";
  lines.forEach((text, index) => {
    context.font = index === 0 ? "600 15px system-ui, sans-serif" : "12px system-ui, sans-serif";
    context.fillStyle = palette(index === 0 ? "--text" : "--muted");
    context.fillText(text, centre.x, centre.y + (index - (lines.length - 1) / 2) * 20);
  });
}

function drawLabel(context, palette, node, size, cell, taken) {
  const gap = size + 8;
  const isSide = Math.abs(node.dx) > 0.25;
  const isAlone = node.dx === 0 && node.dy === 0;
  const isAbove = node.dy < 0 || isAlone;
  const isMarked = node.state === "bad" || node.state === "late";
  context.font = `${isMarked ? "600 " : ""}12px system-ui, sans-serif`;
  const x = node.x + (isSide ? Math.sign(node.dx) * gap : 0);
  const y = node.y + (isSide ? 0 : isAbove ? -gap : gap);
  const room = isSide ? (node.dx > 0 ? cell.x + cell.width - x : x - cell.x) - 4 : cell.width * 0.4;
  const text = clip(context, node.peer.name, room);
  const width = context.measureText(text).width;
  const left = isSide ? (node.dx > 0 ? x : x - width) : x - width / 2;
  const box = { left, right: left + width, top: isSide ? y - 7 : isAbove ? y - 14 : y, bottom: isSide ? y + 7 : isAbove ? y : y + 14 };
  const covers = (other) => box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom;
  if (taken.some(covers)) return;
  taken.push(box);
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = palette(node.state === "bad" ? "--bad" : node.state === "late" ? "--late" : "--text");
  context.fillText(text, left, (box.top + box.bottom) / 2);
}

/** A text that is not wider than this. */
function clip(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
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
