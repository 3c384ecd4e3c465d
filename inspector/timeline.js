// The timeline: lanes on one time axis, drawn on canvas. What is drawn depends on the view's width in pixels and not on
// the length of the session. The cursor and the hover line have a canvas of their own.

import { STATES, firstAt } from "/pages/model.js";

const GUTTER = 104;
const RULER = 26;
const LANES = [
  ["mic", "Microphone", 46], ["vad", "Voice", 46], ["words", "You said", 30], ["eou", "End of turn", 30],
  ["states", "States", 62], ["llm", "Chat tokens", 28], ["tts", "Phrases", 28], ["reply", "Reply words", 30],
  ["pacer", "Played", 40], ["out", "Reply level", 40], ["wire", "Wire", 28], ["engine", "Engine", 24], ["trouble", "Timers, errors", 26],
];
const MIN_SPAN = 200; // ms
const STATE_COLOURS = { Silent: 0, Idle: 0, Active: 1, Candidate: 2, Speaking: 3, Stopped: 4, Predicted: 2, Created: 2, Streaming: 3,
  Drain: 4, Held: 2, Terminated: 5, Pending: 0 };

export class Timeline {
  /** `on`: { turn(turn), cursor(ms), view() } */
  constructor(stage, on) {
    this.on = on;
    this.lanes = stage.querySelector("#lanes");
    this.over = stage.querySelector("#over");
    this.tip = stage.querySelector("#tip");
    // Thousands of small rectangles a frame: quickest where the processor draws them into memory.
    this.context = this.lanes.getContext("2d", { alpha: false, willReadFrequently: true });
    this.overContext = this.over.getContext("2d", { willReadFrequently: true });
    this.session = null;
    this.from = 0;
    this.to = 10_000;
    this.cursor = null;
    this.hover = null;
    this.following = false;
    this.selected = null;
    this.frames = 0; // drawn so far, for measuring
    this.drawMs = 0;
    this.dirty = this.overDirty = true;
    this.seen = -1;
    new ResizeObserver(() => this.resize()).observe(stage);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.colours());
    this.colours();
    this.listen();
    const tick = () => { this.frame(); requestAnimationFrame(tick); };
    requestAnimationFrame(tick);
  }

  colours() {
    const style = getComputedStyle(document.documentElement);
    const get = (name) => style.getPropertyValue(`--${name}`).trim();
    this.c = Object.fromEntries(["paper", "card", "ink", "soft", "faint", "line", "accent", "accent-soft", "danger"].map((n) => [n, get(n)]));
    this.font = `12px ${get("font")}`;
    this.dirty = this.overDirty = true;
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    const { clientWidth: w, clientHeight: h } = this.lanes;
    for (const [canvas, g] of [[this.lanes, this.context], [this.over, this.overContext]]) {
      canvas.width = Math.round(w * ratio);
      canvas.height = Math.round(h * ratio);
      g.setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.width = w;
    this.height = h;
    this.dirty = this.overDirty = true;
  }

  show(session) {
    this.session = session;
    this.cursor = this.selected = null;
    this.fit();
  }

  // --- the view ---

  x(t) { return GUTTER + ((t - this.from) / (this.to - this.from)) * (this.width - GUTTER); }
  t(x) { return this.from + ((x - GUTTER) / (this.width - GUTTER)) * (this.to - this.from); }

  look(from, to) {
    const end = Math.max(this.session?.end ?? 0, 1000);
    const span = Math.min(Math.max(to - from, MIN_SPAN), end * 1.1 + 2000);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - span / 2, -span * 0.2), end + span * 0.2 - span);
    this.from = Math.max(this.from, -span * 0.2);
    this.to = this.from + span;
    this.dirty = true;
    this.overDirty ||= this.cursor !== null || this.hover !== null;
    this.on.view();
  }

  fit() {
    const end = Math.max(this.session?.end ?? 0, 1000);
    this.look(-end * 0.01, end * 1.02);
  }

  zoom(factor, at = this.cursor ?? (this.from + this.to) / 2) {
    this.look(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(ms) { this.follow(false); this.look(this.from + ms, this.to + ms); }

  follow(on) {
    if (this.following === on) return;
    this.following = on;
    this.on.view();
  }

  showTurn(turn) {
    const end = turn.done ?? turn.commit ?? turn.t + 5000;
    this.selected = turn;
    this.follow(false);
    this.look((turn.t ?? 0) - 800, end + 800);
  }

  // --- input ---

  listen() {
    const el = this.lanes;
    let drag = null;
    el.addEventListener("wheel", (e) => {
      e.preventDefault();
      const span = this.to - this.from;
      if (Math.abs(e.deltaX) > Math.abs(e.deltaY) || e.shiftKey) this.pan(((e.deltaX || e.deltaY) / this.width) * span);
      else this.zoom(Math.exp(Math.max(-120, Math.min(120, e.deltaY)) * 0.004), this.t(e.offsetX));
    }, { passive: false });
    el.addEventListener("pointerdown", (e) => {
      el.setPointerCapture(e.pointerId);
      drag = { x: e.offsetX, from: this.from, to: this.to, moved: false };
    });
    el.addEventListener("pointermove", (e) => {
      if (drag) {
        const ms = ((drag.x - e.offsetX) / (this.width - GUTTER)) * (drag.to - drag.from);
        if (Math.abs(drag.x - e.offsetX) > 3) drag.moved = true;
        if (drag.moved) { this.follow(false); this.look(drag.from + ms, drag.to + ms); }
      }
      this.hover = { x: e.offsetX, y: e.offsetY };
      this.overDirty = true;
    });
    el.addEventListener("pointerup", (e) => {
      if (drag && !drag.moved && e.offsetX > GUTTER) this.click(this.t(e.offsetX));
      drag = null;
    });
    el.addEventListener("pointercancel", () => { drag = null; });
    el.addEventListener("pointerleave", () => { this.hover = null; this.overDirty = true; });
    el.addEventListener("dblclick", (e) => this.zoom(0.4, this.t(e.offsetX)));
    el.addEventListener("keydown", (e) => {
      const span = this.to - this.from;
      const keys = { ArrowLeft: () => this.pan(-span / 8), ArrowRight: () => this.pan(span / 8), "+": () => this.zoom(0.7),
        "=": () => this.zoom(0.7), "-": () => this.zoom(1.4), Home: () => this.fit(), f: () => this.follow(!this.following) };
      if (e.ctrlKey || e.metaKey || !keys[e.key]) return;
      e.preventDefault();
      keys[e.key]();
    });
  }

  click(t) {
    this.cursor = Math.max(0, t);
    this.overDirty = true;
    this.on.cursor(this.cursor);
    const turns = this.session?.turns ?? [];
    const turn = turns.findLast((x) => x.t - 300 <= t);
    if (turn) { this.selected = turn; this.dirty = true; this.on.turn(turn); }
  }

  // --- drawing ---

  frame() {
    const s = this.session;
    if (!s || !this.width) return;
    if (s.version !== this.seen) {
      this.seen = s.version;
      if (this.following) {
        const span = this.to - this.from;
        this.to = s.end + span * 0.06;
        this.from = this.to - span;
        this.overDirty = true;
      }
      this.dirty ||= this.following || s.end > this.from;
    }
    if (this.dirty) {
      const began = performance.now();
      this.dirty = false;
      this.draw();
      this.frames++;
      this.drawMs += performance.now() - began;
    }
    if (this.overDirty) { this.overDirty = false; this.drawOver(); }
  }

  draw() {
    const g = this.context;
    g.fillStyle = this.c.paper;
    g.fillRect(0, 0, this.width, this.height);
    g.font = this.font;
    g.textBaseline = "middle";
    g.save();
    g.beginPath();
    g.rect(GUTTER, 0, this.width - GUTTER, this.height);
    g.clip();
    this.ruler(g);
    if (this.selected) {
      const from = this.x((this.selected.t ?? 0) - 100);
      const to = this.x(this.selected.done ?? this.selected.commit ?? this.session.end);
      g.globalAlpha = 0.5;
      g.fillStyle = this.c["accent-soft"];
      g.fillRect(from, RULER, Math.max(2, to - from), this.height);
      g.globalAlpha = 1;
    }
    this.each((name, y, h) => this.lane(g, name, y, h));
    g.restore();
    this.each((name, y, h, title) => {
      g.fillStyle = this.c.line;
      g.fillRect(0, y + h - 1, this.width, 1);
      g.fillStyle = this.c.soft;
      g.fillText(title, 12, y + h / 2);
    });
  }

  each(fn) {
    let y = RULER;
    for (const [name, title, h] of LANES) { fn(name, y, h, title); y += h; }
  }

  ruler(g) {
    const span = this.to - this.from;
    const steps = [10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 12e4, 3e5, 6e5, 18e5];
    const step = steps.find((s) => (s / span) * (this.width - GUTTER) >= 84) ?? 36e5;
    for (let t = Math.ceil(Math.max(0, this.from) / step) * step; t < this.to; t += step) {
      const x = this.x(t);
      g.fillStyle = this.c.line;
      g.fillRect(x, RULER - 5, 1, this.height);
      g.fillStyle = this.c.faint;
      g.fillText(clock(t, step < 1000), x + 4, RULER / 2);
    }
  }

  lane(g, name, y, h) {
    const s = this.session;
    switch (name) {
      case "mic": return this.area(g, s.mic, y, h, (db) => Math.max(0, (db + 70) / 64), this.c.faint, true);
      case "vad":
        this.area(g, s.vad, y, h, (p) => p, this.c.accent);
        for (const level of [s.threshold, s.stopThreshold]) this.dashed(g, y + h - 3 - level * (h - 6));
        return undefined;
      case "out": return this.area(g, s.out, y, h, (peak) => Math.sqrt(peak), this.c.accent, true);
      case "pacer": return this.area(g, s.played, y, h, (ms) => ms / s.longest, this.c.faint);
      case "states": return this.stateStrips(g, y, h);
      case "tts": case "reply": return this.texts(g, s.marks[name], y, h, true);
      case "words": case "llm": return this.texts(g, s.marks[name], y, h, false);
      case "eou": return this.texts(g, s.marks.eou, y, h, false, this.c.accent);
      case "wire": return this.texts(g, s.marks.wire, y, h, false, this.c.soft);
      case "engine": return this.texts(g, s.marks.engine, y, h, false, this.c.faint);
      default: return this.texts(g, s.marks.trouble, y, h, false, this.c.danger);
    }
  }

  /** A series as one column of pixels after the other: the largest value in each. */
  area(g, series, y, h, scale, colour, mirrored = false) {
    let i = Math.max(0, series.at(this.from) - 1);
    const right = series.at(this.to) + 1;
    const perPixel = (this.to - this.from) / (this.width - GUTTER);
    g.fillStyle = colour;
    const room = h - 6;
    const bar = (x, w, v) => {
      const tall = Math.max(0, Math.min(1, v)) * room;
      if (tall > 0.4) g.fillRect(x, mirrored ? y + 3 + (room - tall) / 2 : y + 3 + room - tall, w, tall);
    };
    const end = Math.min(right, series.n);
    while (i < end) {
      const x = Math.floor(this.x(series.t[i]));
      const until = this.from + (x + 1 - GUTTER) * perPixel;
      const next = i + 1 < end && series.t[i + 1] < until ? Math.min(end, series.at(until, i + 1)) : i + 1;
      const most = scale(series.most(i, next));
      const gap = next < end ? Math.min(series.t[next] - series.t[i], 120) : 40;
      bar(x, Math.max(1, Math.floor(this.x(series.t[i] + gap)) - x), most);
      i = next;
    }
  }

  dashed(g, y) {
    g.strokeStyle = this.c.soft;
    g.setLineDash([3, 4]);
    g.beginPath();
    g.moveTo(GUTTER, Math.round(y) + 0.5);
    g.lineTo(this.width, Math.round(y) + 0.5);
    g.stroke();
    g.setLineDash([]);
  }

  stateStrips(g, y, h) {
    const tall = (h - 8) / STATES.length;
    const shades = [this.c.line, this.c["accent-soft"], this.c["accent-soft"], this.c.accent, this.c.faint, this.c.danger];
    STATES.forEach((name, row) => {
      const list = this.session.states[name];
      const top = y + 4 + row * tall;
      let i = Math.max(0, firstAt(list, this.from) - 1);
      while (i < list.length && list[i].t < this.to) {
        const s = list[i];
        const x = Math.max(GUTTER, this.x(s.t));
        const w = this.x(Math.min(s.end, this.session.end, this.to)) - x;
        const shade = STATE_COLOURS[s.value] ?? 1;
        g.fillStyle = shades[shade];
        g.fillRect(x, top, Math.max(1, w - 1), tall - 2);
        const text = name === "session" ? `session: ${s.value}` : s.value;
        if (w > 24 && w > widthOf(g, text) + 8) {
          g.fillStyle = shade === 3 || shade === 4 || shade === 5 ? this.c.paper : this.c.soft;
          g.fillText(text, x + 4, top + tall / 2 - 0.5);
        }
        const after = this.from + ((x + 1 - GUTTER) / (this.width - GUTTER)) * (this.to - this.from);
        i = w < 1 ? Math.max(i + 1, firstAt(list, after, i + 1) - 1) : i + 1;
      }
    });
  }

  /** Marks with their text where there is room for it; one tick a pixel where there is not. */
  texts(g, marks, y, h, boxed, plain = this.c.ink) {
    let i = Math.max(0, firstAt(marks, this.from - 3000));
    while (i < marks.length && marks[i].t < this.to) {
      const m = marks[i];
      const x = this.x(m.t);
      const next = i + 1 < marks.length ? this.x(marks[i + 1].t) : Infinity;
      const w = boxed && m.end > m.t ? this.x(m.end) - x : 0;
      if (x > GUTTER - 400) {
        const colour = m.calm ? this.c.faint : plain;
        g.fillStyle = colour;
        if (w > 2) {
          g.fillStyle = this.c["accent-soft"];
          g.fillRect(x, y + 4, w - 1, h - 8);
          g.fillStyle = colour;
        } else g.fillRect(Math.round(x), y + 5, 1, h - 10);
        const room = next - x - 8;
        if (room > 14) {
          const text = fitted(g, m.text, room);
          if (text) g.fillText(text, x + 4, y + h / 2);
        }
      }
      i = next - x < 1 ? Math.max(i + 1, firstAt(marks, this.t(Math.floor(x) + 1), i + 1)) : i + 1;
    }
  }

  drawOver() {
    const g = this.overContext;
    g.clearRect(0, 0, this.width, this.height);
    if (this.cursor !== null) {
      const x = this.x(this.cursor);
      if (x >= GUTTER) {
        g.fillStyle = this.c.accent;
        g.fillRect(Math.round(x), 0, 2, this.height);
      }
    }
    this.tip.hidden = true;
    const hover = this.hover;
    if (!hover || hover.x < GUTTER || !this.session) return;
    g.fillStyle = this.c.soft;
    g.globalAlpha = 0.5;
    g.fillRect(hover.x, 0, 1, this.height);
    g.globalAlpha = 1;
    const text = this.under(hover.x, hover.y);
    if (!text) return;
    this.tip.textContent = text;
    this.tip.hidden = false;
    const left = Math.min(hover.x + 14, this.width - this.tip.offsetWidth - 8);
    this.tip.style.left = `${Math.max(8, left)}px`;
    this.tip.style.top = `${Math.min(hover.y + 16, this.height - this.tip.offsetHeight - 4)}px`;
  }

  /** What is under the pointer, in words. */
  under(x, y) {
    const s = this.session;
    const t = this.t(x);
    let lane = null;
    this.each((name, top, h) => { if (y >= top && y < top + h) lane = name; });
    const when = clock(t, true);
    const value = (series, unit, digits) => {
      const i = series.at(t) - 1;
      return i >= 0 && t - series.t[i] < 400 ? `${when}  ${series.v[i].toFixed(digits)} ${unit}` : when;
    };
    switch (lane) {
      case "mic": return value(s.mic, "dBFS", 0);
      case "vad": return `${value(s.vad, "speech probability", 2)}\nthresholds ${s.threshold} / ${s.stopThreshold.toFixed(2)}`;
      case "out": return value(s.out, "peak", 2);
      case "pacer": return `${value(s.played, "ms played", 0)}\n${value(s.ahead, "ms ahead", 0)}`;
      case "states":
        return [when, ...STATES.map((n) => {
          const list = s.states[n];
          return `${n}: ${list[Math.max(0, firstAt(list, t + 0.001) - 1)]?.value ?? ""}`;
        })].join("\n");
      case null: return null;
    }
    const list = s.marks[lane];
    const i = firstAt(list, t);
    const near = [list[i - 1], list[i]].filter(Boolean).sort((a, b) => Math.abs(a.t - t) - Math.abs(b.t - t))[0];
    if (!near || (Math.abs(this.x(near.t) - x) > 60 && !(near.t < t && t < near.end))) return when;
    const detail = near.r && near.key !== "llm.token" ? `\n${JSON.stringify(near.r.payload).slice(0, 400)}` : "";
    return `${clock(near.t, true)}  ${near.text}${detail}`;
  }
}

const widths = new Map();

function widthOf(g, text) {
  let w = widths.get(text);
  if (w === undefined) {
    if (widths.size > 20000) widths.clear();
    widths.set(text, (w = g.measureText(text).width));
  }
  return w;
}

/** As much of a text as fits in `room` pixels. */
function fitted(g, text, room) {
  const w = widthOf(g, text);
  if (w <= room) return text;
  const keep = Math.floor((room / w) * text.length) - 1;
  return keep >= 3 ? `${text.slice(0, keep)}…` : "";
}

/** m:ss, h:mm:ss, with milliseconds where asked. */
export function clock(ms, fine = false) {
  const sign = ms < 0 ? "-" : "";
  const v = Math.abs(Math.round(ms));
  const s = Math.floor(v / 1000);
  const two = (n) => String(n).padStart(2, "0");
  const head = s >= 3600 ? `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}` : `${Math.floor(s / 60)}`;
  return `${sign}${head}:${two(s % 60)}${fine ? `.${String(v % 1000).padStart(3, "0")}` : ""}`;
}
