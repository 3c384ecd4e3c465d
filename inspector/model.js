// A session as the timeline needs it: series, marks and intervals on one time axis (ms since the session began), and
// turns put together from the records. Fed by records one at a time, live or from a journal.

const BLOCK = 64;

/** Numbers over time, in order, with the largest of every 64 kept beside them. */
export class Series {
  constructor() {
    this.n = 0;
    this.t = new Float64Array(1024);
    this.v = new Float32Array(1024);
    this.peaks = [];
  }

  push(t, v) {
    if (this.n === this.t.length) {
      const t2 = new Float64Array(2 * this.n);
      const v2 = new Float32Array(2 * this.n);
      t2.set(this.t);
      v2.set(this.v);
      [this.t, this.v] = [t2, v2];
    }
    const block = (this.n / BLOCK) | 0;
    if (block === this.peaks.length) this.peaks.push(v);
    else if (v > this.peaks[block]) this.peaks[block] = v;
    this.t[this.n] = t;
    this.v[this.n++] = v;
  }

  /** The largest of samples [from, to). */
  most(from, to) {
    let most = -Infinity;
    for (let i = from; i < to;) {
      if (i % BLOCK === 0 && i + BLOCK <= to) {
        if (this.peaks[i / BLOCK] > most) most = this.peaks[i / BLOCK];
        i += BLOCK;
      } else {
        if (this.v[i] > most) most = this.v[i];
        i++;
      }
    }
    return most;
  }

  /** Index of the first sample at or after `t`. */
  at(t, from = 0) {
    let low = from;
    let high = this.n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.t[middle] < t) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** Index of the first mark that begins at or after `t`; marks are sorted by `t`. */
export function firstAt(marks, t, from = 0) {
  let low = from;
  let high = marks.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (marks[middle].t < t) low = middle + 1;
    else high = middle;
  }
  return low;
}

export const MARK_LANES = ["words", "eou", "llm", "tts", "reply", "wire", "engine", "trouble"];
export const STATES = ["session", "vad", "resp"];

export class Session {
  constructor(id) {
    this.id = id;
    this.zero = null; // ms of the server's monotonic clock
    this.started = null; // wall time, s
    this.end = 0;
    this.mic = new Series(); // dBFS
    this.vad = new Series(); // probability
    this.out = new Series(); // peak
    this.played = new Series(); // ms of the reply
    this.ahead = new Series(); // ms written and not played
    this.marks = Object.fromEntries(MARK_LANES.map((lane) => [lane, []]));
    this.states = Object.fromEntries(STATES.map((name) => [name, []]));
    this.turns = [];
    this.threshold = 0.5;
    this.stopThreshold = 0.35;
    this.lines = [];
    this.dropped = 0;
    this.longest = 2000; // ms, of the longest reply
    this.version = 0; // goes up with every change
    this.fault = ""; // why it cannot be read
    this._turns = new Map();
    this._responses = new Map();
  }

  /** One line of a live stream or of a journal. */
  line(text) {
    if (!text) return;
    this.lines.push(text);
    this.take(JSON.parse(text));
  }

  take(entry) {
    this.version++;
    if (entry.journal) {
      this.zero = entry.mono0_ms;
      this.started = entry.started;
      this.id ||= entry.session;
    } else if (entry.in) this.input(entry.in);
    else if (entry.rec) this.record(entry.rec);
    else if (entry.lane) this.record(entry);
  }

  time(ms) {
    this.zero ??= ms;
    const t = ms - this.zero;
    if (t > this.end) this.end = t;
    return t;
  }

  /** An input of the turn machine; only those that have no record of their own. */
  input(ev) {
    if (ev._ === "VadWindow") this.window(this.time(ev.at), ev.prob, ev.level_db);
    else if (ev._ === "FrameDue") this.frame(this.time(ev.at), ev.written_ms, ev.played_ms);
  }

  window(t, p, db) {
    this.vad.push(t, p);
    this.mic.push(t, db);
  }

  frame(t, written, played) {
    this.played.push(t, played);
    this.longest = Math.max(this.longest, played);
    this.ahead.push(t, Math.max(0, written - played));
  }

  record(r) {
    const t = this.time(r.ts_mono_ns / 1e6);
    this.started ??= r.ts_wall - t / 1000;
    const p = r.payload ?? {};
    const turn = this.turn(r.corr.turn_id || "");
    const key = `${r.lane}.${r.kind}`;
    switch (key) {
      case "vad.window": return this.window(t, p.p, p.db);
      case "tts_pacer.frame": return this.frame(t, p.written_ms, p.played_ms);
      case "audio_level.out": return this.out.push(t, p.peak);
      case "state.phase": return this.phase(t, p);
      case "error.records_dropped": this.dropped += p.count; break;
    }
    this.story(turn, key, t, r);
    const lane = LANES[key] ?? LANES[r.lane];
    if (!lane) return;
    const text = label(key, p);
    const list = this.marks[lane];
    const mark = { t, end: t, text, key, r, calm: key === "state.timer_fired" && ROUTINE.has(p.key) };
    if (key === "tts_chunk.planned") return this.phrase(mark, r);
    if (key === "turn.commit" && list.length && t - list.at(-1).t < 20) { // one decision, one mark
      list.at(-1).text += `, ${text}`;
      return undefined;
    }
    if (list.length && list.at(-1).t > t) list.splice(firstAt(list, t), 0, mark); // clocks of lines may differ a little
    else list.push(mark);
  }

  /** A phrase's words, where they are heard: once the reply's first frame has left. */
  phrase(mark, r) {
    this.marks.tts.push(mark);
    const response = this.response(r.corr.response_id);
    response.words.push(...r.payload.words);
    this.place(response);
  }

  place(response) {
    if (response.firstFrame === null) return;
    for (const [text, from, to] of response.words) {
      const t = response.firstFrame + from;
      this.marks.reply.push({ t, end: response.firstFrame + to, text: text.trim(), key: "reply.word", r: null });
    }
    response.words = [];
  }

  response(id) {
    let found = this._responses.get(id);
    if (!found) this._responses.set(id, (found = { id, words: [], firstFrame: null }));
    return found;
  }

  phase(t, p) {
    for (const name of STATES) {
      const list = this.states[name];
      if (list.length && list.at(-1).value === p[name]) continue;
      if (list.length) list.at(-1).end = t;
      list.push({ t, end: Infinity, value: p[name] });
    }
  }

  turn(id) {
    let turn = this._turns.get(id);
    if (!turn) {
      turn = { id, t: null, text: "", reply: "", notes: [] };
      this._turns.set(id, turn);
    }
    return turn;
  }

  /** Keep what tells the story of a turn. */
  story(turn, key, t, r) {
    const p = r.payload ?? {};
    const first = (name) => (turn[name] ??= t);
    switch (key) {
      case "stt.start":
        if (turn.t === null) {
          turn.t = t;
          this.turns.push(turn);
        }
        break;
      case "stt.flush":
        turn.stop = t;
        turn.voiceEnd = t - (p.audio_ms - p.voiced_ms);
        turn.transcript = turn.scored = null; // those of an earlier stop, if the caller spoke on
        break;
      case "stt.transcript":
        turn.transcript ??= t;
        turn.text = p.text.trim();
        turn.tookStt = p.took_ms;
        break;
      case "eou.verdict":
        if (p.audio !== null || p.words !== null) turn.score = p.p; // else nobody had answered: the rules decided
        turn.scored = t;
        turn.threshold = p.threshold;
        turn.delay = p.delay_ms;
        break;
      case "turn.commit": turn.commit = t; turn.why = p.why; break;
      case "turn.re_entry": turn.notes.push("you went on speaking before the turn was over"); break;
      case "llm.ask":
        if (turn.t === null) { // typed, or asked for by the client
          turn.t = t;
          turn.text = p.last;
          turn.typed = true;
          this.turns.push(turn);
        }
        turn.ask = t;
        turn.firstToken = turn.firstChunk = turn.firstFrame = null;
        turn.reply = "";
        break;
      case "llm.predicted": turn.predicted = true; break;
      case "llm.adopted": turn.adopted = true; break;
      case "llm.token": first("firstToken"); turn.reply += p.text; break;
      case "llm.done": turn.tokens = p.output_tokens; turn.chatDone = t; break;
      case "tts_chunk.planned": first("firstChunk"); break;
      case "wire.out": this.wire(turn, t, p); break;
      case "bargein.commit": turn.cut = p.played_ms ?? turn.cut; break;
      case "response.retired": { // planned words that were never heard
        const words = this.marks.reply;
        while (words.length && words.at(-1).t > t) words.pop();
        if (words.length) words.at(-1).end = Math.min(words.at(-1).end, t);
        break;
      }
      case "bargein.suppressed": turn.notes.push("a sound over the reply was not taken for speech"); break;
      case "response.done": turn.status = p.status; turn.reason = p.reason; turn.played = p.played_ms; turn.done = t; break;
    }
    if (r.lane === "error") turn.notes.push(`${r.kind.replaceAll("_", " ")}: ${p.message ?? ""}`);
  }

  wire(turn, t, event) {
    if (event.type === "output_audio_buffer.started" || event.type === "response.content_part.added") {
      if (turn.firstFrame) return;
      turn.firstFrame = t;
      const response = this.response(event.response_id);
      response.firstFrame ??= t;
      this.place(response);
    }
  }
}

const LANES = {
  "stt.partial": "words", "stt.transcript": "words", "eou.verdict": "eou", "eou.timeout": "eou", bargein: "eou", turn: "eou",
  "llm.token": "llm", tool: "llm", "tts_chunk.planned": "tts", "wire.in": "wire", "wire.out": "wire", engine: "engine",
  error: "trouble", "state.timer_fired": "trouble", "response.FlushOutput": "trouble",
};
// timers that go off in a call where nothing is amiss
const ROUTINE = new Set(["barge_in", "commit", "input_gap", "keys", "partial", "session_idle"]);
const PLAIN = /^(response|conversation|input_audio_buffer|output_audio_buffer|session)\.(item\.)?(input_audio_)?/;

function label(key, p) {
  switch (key) {
    case "stt.partial": return p.text;
    case "stt.transcript": return p.text.trim() || "(nothing)";
    case "eou.verdict": return `${p.p === null ? "no score" : p.p.toFixed(2)} → ${p.delay_ms} ms`;
    case "turn.commit": return `commit: ${String(p.why).replaceAll("_", " ")}`;
    case "bargein.commit": return p.played_ms === undefined ? `the floor is the caller's: ${p.why}` : `cut at ${p.played_ms} ms`;
    case "llm.token": return p.text;
    case "tts_chunk.planned": return p.text.trim();
    case "wire.out": return p.type ? p.type.replace(PLAIN, "") : "event";
    case "wire.in": return typeof p === "string" ? (/"type":\s*"([^"]+)"/.exec(p)?.[1] ?? "event") : "event";
    case "engine.load": return `${p.jobs ?? 0} in hand, ${p.streams} streams, ${p.sessions} ${p.sessions === 1 ? "session" : "sessions"}`;
    case "state.timer_fired": return `${p.key.replaceAll("_", " ")} timer`;
    default: return key.split(".")[1].replaceAll("_", " ");
  }
}
