// A turn's story in words, and where its time went.

import { clock } from "/pages/timeline.js";

const WHY = {
  eou: "its wait was over", wait: "its wait was over", silence: "of the silence", client: "the client asked for it",
  max_utterance: "the utterance had become too long", hard_cap_during_eou: "the classifier had not answered by the hard cap",
  hard_cap_during_wait: "the hard cap came first",
};
const ms = (a, b) => Math.max(0, Math.round(b - a));
const known = (...values) => values.every((v) => v !== undefined && v !== null);

/** Sentences about a turn. */
export function sentences(turn) {
  const out = [];
  if (!turn.typed) {
    const end = turn.voiceEnd ?? turn.stop;
    out.push(`You spoke${known(end) ? ` until ${clock(end, true)}` : ""}.`);
    if (known(turn.stop, turn.voiceEnd)) {
      let text = `It was taken as a stop ${ms(turn.voiceEnd, turn.stop)} ms after your last voiced sound`;
      if (known(turn.score)) text += `; the end-of-turn score was ${turn.score.toFixed(2)} (threshold ${turn.threshold})`;
      if (known(turn.delay)) text += `, so the wait was to be ${turn.delay} ms from that sound`;
      out.push(`${text}.`);
    }
    if (known(turn.commit)) {
      const after = known(turn.voiceEnd) ? ` ${ms(turn.voiceEnd, turn.commit)} ms after your last sound` : "";
      out.push(`The turn ended${after}, because ${WHY[turn.why] ?? turn.why}.`);
    }
    if (known(turn.tookStt)) out.push(`The transcript took ${turn.tookStt} ms.`);
  }
  if (known(turn.ask)) {
    const early = known(turn.commit) && turn.ask < turn.commit;
    let text = early ? "The reply was begun before the turn was over" : "Chat was asked";
    if (turn.adopted) text += ", and that draft was used";
    if (known(turn.firstToken)) text += `; its first token came ${ms(turn.ask, turn.firstToken)} ms later`;
    if (known(turn.firstToken, turn.firstChunk)) text += `, the first speech ${ms(turn.firstToken, turn.firstChunk)} ms after that`;
    out.push(`${text}.`);
  }
  const from = turn.typed ? turn.ask : turn.voiceEnd;
  if (known(turn.firstFrame, from)) {
    out.push(`The first sound left ${ms(from, turn.firstFrame)} ms after ${turn.typed ? "it was asked for" : "your last sound"}.`);
  }
  if (known(turn.cut)) out.push(`You spoke over it after ${turn.cut} ms, and it stopped.`);
  else if (turn.status && turn.status !== "completed") out.push(`The reply ended as ${turn.status}${turn.reason ? ` (${turn.reason.replaceAll("_", " ")})` : ""}.`);
  else if (turn.status) out.push(`It was heard to its end: ${turn.played} ms.`);
  for (const note of new Set(turn.notes)) out.push(`Also: ${note}.`);
  return out;
}

/** Stages as [name, from, to], ms on the session's axis. */
export function stages(turn) {
  const out = [];
  const add = (name, from, to) => { if (known(from, to) && to >= from) out.push([name, from, to]); };
  if (!turn.typed) {
    add("Silence until a stop", turn.voiceEnd, turn.stop);
    add("Transcript", turn.stop, turn.transcript);
    add("End-of-turn score", turn.stop, turn.scored);
    add("Waiting for more", turn.scored ?? turn.stop, turn.commit);
  }
  add("First token", turn.ask, turn.firstToken);
  add("First speech", turn.firstToken, turn.firstChunk);
  add("Held, then sent", turn.firstChunk, turn.firstFrame);
  return out;
}

export function show(element, turn) {
  const title = Object.assign(document.createElement("h3"), { textContent: turn.text || "(no words)" });
  const text = Object.assign(document.createElement("p"), { textContent: sentences(turn).join(" ") });
  element.replaceChildren(title, text);
  if (turn.reply.trim()) {
    const reply = document.createElement("p");
    reply.append(Object.assign(document.createElement("small"), { textContent: "Reply: " }), turn.reply.trim());
    element.append(reply);
  }
  const list = stages(turn);
  if (!list.length) return;
  const zero = Math.min(...list.map((s) => s[1]));
  const span = Math.max(...list.map((s) => s[2])) - zero || 1;
  const fall = Object.assign(document.createElement("div"), { className: "waterfall" });
  fall.setAttribute("role", "group");
  fall.setAttribute("aria-label", "Where the time went");
  for (const [name, from, to] of list) {
    const bar = Object.assign(document.createElement("div"), { className: "bar" });
    const inner = document.createElement("b");
    inner.style.left = `${(100 * (from - zero)) / span}%`;
    inner.style.width = `${(100 * (to - from)) / span}%`;
    bar.append(inner);
    fall.append(Object.assign(document.createElement("span"), { textContent: name }), bar,
      Object.assign(document.createElement("span"), { className: "ms", textContent: `${Math.round(to - from)} ms` }));
  }
  element.append(fall);
}
