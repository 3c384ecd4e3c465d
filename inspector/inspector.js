// The inspector page: choose a session, feed the model, wire up timeline, story, sound and export.

import { withKey } from "/pages/api.js";
import { Session } from "/pages/model.js";
import { show } from "/pages/story.js";
import { Timeline, clock } from "/pages/timeline.js";

const $ = (id) => document.getElementById(id);
const KEY = "bargein.admin";
const audio = $("audio"); // the caller left, the agent right
let session = null;
let source = null; // how the session was opened: { id, live, recorded }
let stop = null; // ends a live stream
let listed = [];
let drawnTurns = 0;
let drawnVersion = -1;

const timeline = new Timeline($("stage"), {
  turn: (turn) => choose(turn, false),
  cursor: (ms) => { audio.currentTime = ms / 1000; },
  view: () => {
    $("follow").setAttribute("aria-pressed", String(timeline.following));
    remember();
  },
});

const headers = () => withKey(sessionStorage.getItem(KEY) || "");

// --- the list -------------------------------------------------------------------------------------------------------

async function refresh() {
  let reply;
  try {
    reply = await fetch("/v1/inspect", { headers: headers(), cache: "no-store" });
  } catch {
    $("title").textContent ||= "The server does not answer.";
    return;
  }
  $("key-form").hidden = reply.status !== 401;
  if (reply.status === 401) {
    $("key-error").hidden = !sessionStorage.getItem(KEY);
    $("key-error").textContent = (await reply.json()).error.message;
    return;
  }
  const body = await reply.json();
  listed = body.data;
  $("none").hidden = listed.length > 0;
  $("recording-hint").textContent = body.recording ? "Calls are recorded." : "Calls are not recorded (inspector.session_dir).";
  draw();
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (!session && wanted.get("session")) {
    const found = listed.find((s) => s.session_id === wanted.get("session"));
    if (found) {
      const from = Number(wanted.get("from"));
      const to = Number(wanted.get("to"));
      await open(found);
      if (to > from) { timeline.follow(false); timeline.look(from, to); }
    }
  }
}

function draw() {
  const items = listed.map((s) => {
    const button = Object.assign(document.createElement("button"), { type: "button" });
    const when = new Date(s.started * 1000);
    const name = Object.assign(document.createElement("span"), { textContent: when.toLocaleTimeString(), className: s.live ? "live" : "" });
    const length = s.seconds ? `${clock(s.seconds * 1000)}, ` : "";
    const what = s.live ? "live" : s.recorded ? "recorded" : "just ended";
    const more = Object.assign(document.createElement("small"), { textContent: `${when.toLocaleDateString()} · ${length}${what} · ${s.transport}` });
    button.append(name, more);
    button.setAttribute("aria-current", String(source?.session_id === s.session_id));
    button.onclick = () => open(s);
    const li = document.createElement("li");
    li.append(button);
    return li;
  });
  const focused = [...$("sessions").querySelectorAll("button")].indexOf(document.activeElement);
  $("sessions").replaceChildren(...items);
  if (focused >= 0) $("sessions").querySelectorAll("button")[focused]?.focus();
}

$("key-form").onsubmit = (e) => {
  e.preventDefault();
  sessionStorage.setItem(KEY, $("key").value.trim());
  refresh();
};

// --- opening --------------------------------------------------------------------------------------------------------

function begin(made, what) {
  stop?.();
  stop = null;
  pause();
  session = made;
  source = what;
  drawnTurns = 0;
  drawnVersion = -1;
  $("turns").replaceChildren();
  $("story").replaceChildren(Object.assign(document.createElement("p"), { className: "hint", textContent: "Pick a turn for its story." }));
  $("empty").hidden = true;
  $("view").hidden = false;
  document.querySelector(".tools").hidden = false;
  $("follow").hidden = !what.live;
  timeline.following = false;
  timeline.resize();
  timeline.show(session);
  for (const id of ["play", "export-audio"]) $(id).hidden = true;
  draw();
}

async function open(what) {
  begin(new Session(what.session_id), what);
  const mine = session;
  if (what.recorded && !what.live) {
    const reply = await fetch(`/v1/inspect/${what.session_id}/journal`, { headers: headers() });
    if (!reply.ok) return fail(reply);
    await feed(mine, reply.body);
    timeline.fit();
    await sound(`/v1/inspect/${what.session_id}/audio.wav`);
    return undefined;
  }
  const control = new AbortController();
  stop = () => control.abort();
  const reply = await fetch(`/v1/inspect/${what.session_id}`, { headers: headers(), signal: control.signal }).catch(() => null);
  if (!reply?.ok) return fail(reply);
  if (what.live) {
    timeline.look(0, 20_000);
    timeline.follow(true);
  }
  const fed = feed(mine, reply.body).catch(() => {}).then(() => {
    if (session !== mine) return;
    $("follow").hidden = true;
    timeline.follow(false);
    source.live = false;
    if (!what.live) timeline.fit();
  });
  return what.live ? undefined : fed;
}

function fail(reply) {
  fault(reply ? `The session could not be opened (${reply.status}).` : "The server does not answer.");
}

/** What is wrong with the session that is shown, in place of its title; drawing it does not take that away. */
function fault(text) {
  session.fault = text;
  $("title").textContent = text;
}

async function feed(into, body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) into.line(line);
    if (into !== session) return reader.cancel();
  }
  if (rest) into.line(rest);
  return undefined;
}

async function openFiles(files) {
  const journal = [...files].find((f) => f.name.endsWith(".jsonl"));
  if (!journal) {
    $("title").textContent = "That is no journal: its name ends in .jsonl.";
    return;
  }
  const made = new Session("");
  begin(made, { session_id: journal.name, live: false, recorded: false });
  try {
    await feed(made, journal.stream());
  } catch {
    fault(`${journal.name} is not a journal.`);
    return;
  }
  timeline.fit();
  const wav = [...files].find((f) => f.name.endsWith(".wav"));
  if (wav) setSound(URL.createObjectURL(wav));
}

$("file").onchange = (e) => openFiles(e.target.files);
addEventListener("dragover", (e) => { e.preventDefault(); document.body.classList.add("dropping"); });
addEventListener("dragleave", (e) => { if (!e.relatedTarget) document.body.classList.remove("dropping"); });
addEventListener("drop", (e) => {
  e.preventDefault();
  document.body.classList.remove("dropping");
  if (e.dataTransfer.files.length) openFiles(e.dataTransfer.files);
});

// --- turns ----------------------------------------------------------------------------------------------------------

function choose(turn, move = true) {
  show($("story"), turn);
  if (move) timeline.showTurn(turn);
  for (const button of $("turns").querySelectorAll("button")) button.setAttribute("aria-current", String(button.turn === turn));
}

function drawTurns() {
  if (!session) return;
  const turns = session.turns;
  const fresh = drawnTurns < turns.length;
  for (; drawnTurns < turns.length; drawnTurns++) {
    const button = Object.assign(document.createElement("button"), { type: "button", turn: turns[drawnTurns] });
    button.append(document.createElement("span"), document.createElement("span"));
    button.onclick = () => choose(button.turn);
    const li = document.createElement("li");
    li.append(button);
    $("turns").append(li);
  }
  if (session.version === drawnVersion) return;
  const recent = fresh ? $("turns").children : [...$("turns").children].slice(-3);
  for (const li of recent) {
    const [when, text] = li.firstChild.children;
    when.textContent = clock(li.firstChild.turn.t ?? 0);
    text.textContent = li.firstChild.turn.text || "…";
  }
  drawnVersion = session.version;
  if (session.fault) return;
  const dropped = session.dropped ? ` · ${session.dropped} records dropped` : "";
  $("title").textContent = `${session.id} · ${clock(session.end)} · ${turns.length} turns${dropped}`;
}

// --- sound ----------------------------------------------------------------------------------------------------------

async function sound(url) {
  if (!sessionStorage.getItem(KEY)) return setSound(url);
  const reply = await fetch(url, { headers: headers() });
  return reply.ok ? setSound(URL.createObjectURL(await reply.blob())) : undefined;
}

function setSound(url) {
  audio.src = url;
  Object.assign($("export-audio"), { href: url, download: `${session.id}.wav`, hidden: false });
  $("play").hidden = false;
}

function pause() {
  audio.pause();
  $("play").textContent = "Play";
  $("play").setAttribute("aria-pressed", "false");
}

$("play").onclick = async () => {
  if (!audio.paused) return pause();
  audio.currentTime = (timeline.cursor ?? Math.max(0, timeline.from)) / 1000;
  $("play").textContent = "Pause";
  $("play").setAttribute("aria-pressed", "true");
  await audio.play().catch(() => {});
  return follow();
};

/** The cursor goes with the sound. */
function follow() {
  if (audio.paused) return pause();
  timeline.cursor = audio.currentTime * 1000;
  timeline.overDirty = true;
  const span = timeline.to - timeline.from;
  if (timeline.cursor > timeline.to - span * 0.05) timeline.look(timeline.cursor - span * 0.2, timeline.cursor + span * 0.8);
  requestAnimationFrame(follow);
  return undefined;
}

// --- view and export ------------------------------------------------------------------------------------------------

let remembering = 0;
function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(() => source && history.replaceState(null, "", `#${viewOf()}`), 300);
}

const viewOf = () =>
  new URLSearchParams({ session: source.session_id, from: Math.round(timeline.from), to: Math.round(timeline.to) }).toString();

$("zoom-in").onclick = () => timeline.zoom(0.6);
$("zoom-out").onclick = () => timeline.zoom(1.6);
$("fit").onclick = () => { timeline.follow(false); timeline.fit(); };
$("follow").onclick = () => timeline.follow(!timeline.following);
$("export-lines").onclick = () => {
  const blob = new Blob([session.lines.join("\n"), "\n"], { type: "application/x-ndjson" });
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: `${session.id}.jsonl` });
  link.click();
  URL.revokeObjectURL(link.href);
  $("export").open = false;
};
$("export-link").onclick = async () => {
  await navigator.clipboard?.writeText(`${location.origin}${location.pathname}#${viewOf()}`);
  $("export-link").textContent = "Copied";
  setTimeout(() => { $("export-link").textContent = "Copy a link to this view"; $("export").open = false; }, 1200);
};
document.addEventListener("click", (e) => { if (!e.target.closest("#export")) $("export").open = false; });

window.inspector = { timeline, get session() { return session; } };
setInterval(drawTurns, 250);
setInterval(refresh, 3000);
refresh();
