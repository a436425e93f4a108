// A line over the last five minutes, on a canvas.

import { context2d } from "./ring.js";

const SECONDS = 300;
const PAD = { left: 62, right: 10, top: 8, bottom: 18 };

export class Plot {
  /** `value(second)` is a number or null; `marks(second)` says whether something failed then. */
  constructor(canvas, { value, format, colour, marks = () => 0 }) {
    Object.assign(this, { canvas, value, format, colour, marks, history: [], hovered: null });
    canvas.addEventListener("pointermove", (event) => this.hover(event.offsetX));
    canvas.addEventListener("pointerleave", () => this.hover(null));
  }

  show(history) {
    this.history = history;
    this.draw();
  }

  hover(x) {
    this.hovered = x;
    this.draw();
  }

  draw() {
    const { context, width, height, palette } = context2d(this.canvas);
    const values = this.history.map(this.value);
    const most = Math.max(0, ...values.filter((value) => value !== null));
    const top = niceTop(most);
    const inner = { width: width - PAD.left - PAD.right, height: height - PAD.top - PAD.bottom };
    const x = (index) => PAD.left + inner.width * (1 - (values.length - 1 - index) / (SECONDS - 1));
    const y = (value) => PAD.top + inner.height * (1 - value / top);

    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.lineWidth = 1;
    for (const part of [0, 0.5, 1]) {
      context.strokeStyle = palette("--grid");
      line(context, PAD.left, y(top * part), width - PAD.right, y(top * part));
      context.fillStyle = palette("--muted");
      context.textAlign = "right";
      context.fillText(most === 0 && part > 0 ? "" : this.format(top * part), PAD.left - 8, y(top * part));
    }
    context.textAlign = "center";
    for (const minutes of [4, 3, 2, 1, 0]) {
      const at = PAD.left + inner.width * (1 - (60 * minutes) / (SECONDS - 1));
      context.fillText(minutes === 0 ? "now" : `-${minutes} min`, Math.min(at, width - 14), height - 8);
    }
    this.drawLine(context, palette, values, x, y);
    context.fillStyle = palette("--bad");
    this.history.forEach((second, index) => {
      if (this.marks(second) > 0) context.fillRect(x(index) - 1, PAD.top + inner.height - 6, 2, 6);
    });
    if (this.hovered !== null && values.length > 0) this.drawHovered(context, palette, values, x, y, width, inner);
  }

  drawLine(context, palette, values, x, y) {
    const colour = palette(this.colour);
    const parts = [];
    values.forEach((value, index) => {
      if (value === null) return;
      const last = parts.at(-1);
      // Seconds without a step are bridged if there are few of them.
      if (last && index - last.at(-1) <= 15) last.push(index);
      else parts.push([index]);
    });
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    for (const part of parts) {
      context.beginPath();
      part.forEach((index) => context.lineTo(x(index), y(values[index])));
      context.strokeStyle = colour;
      context.stroke();
      context.lineTo(x(part.at(-1)), y(0));
      context.lineTo(x(part[0]), y(0));
      context.closePath();
      context.globalAlpha = 0.14;
      context.fillStyle = colour;
      context.fill();
      context.globalAlpha = 1;
    }
  }

  drawHovered(context, palette, values, x, y, width, inner) {
    const share = (this.hovered - PAD.left) / inner.width;
    const index = Math.round(values.length - 1 - (1 - share) * (SECONDS - 1));
    const value = values[index];
    if (value === undefined || value === null) return;
    context.strokeStyle = palette("--muted");
    context.lineWidth = 1;
    line(context, x(index), PAD.top, x(index), PAD.top + inner.height);
    context.fillStyle = palette(this.colour);
    context.beginPath();
    context.arc(x(index), y(value), 3, 0, 2 * Math.PI);
    context.fill();
    const failed = this.marks(this.history[index]);
    const text = this.format(value) + (failed > 0 ? `, ${failed} failed` : "");
    context.font = "600 12px system-ui, sans-serif";
    context.textAlign = x(index) > width / 2 ? "right" : "left";
    context.fillStyle = palette("--text");
    context.fillText(text, x(index) + (x(index) > width / 2 ? -8 : 8), PAD.top + 6);
  }
}

function line(context, x0, y0, x1, y1) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

/** A round number that is not less. */
function niceTop(most) {
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= most) * power;
}
