// The call page: buttons, states and the call itself.

import { Refusal, capabilities, ephemeralKey, heldKey, holdKey } from "/pages/api.js";
import { Captions } from "/pages/captions.js";
import { Levels, shown } from "/pages/levels.js";
import { Settings } from "/pages/settings.js";
import { NotConnected, overWebRtc, overWebSocket } from "/pages/transport.js";

const $ = (id) => document.getElementById(id);
const captions = new Captions($("captions"));
const query = new URLSearchParams(location.search);

let server = null; // what the server can do
let settings = null;
let call = null;
let context = null;
let levels = null;
let microphone = null;
let muted = false;
let responseId = null; // the reply that is on its way or being spoken
let spokeUntil = 0; // when the user's last turn ended, by the microphone
let attempt = 0;

// --- states ---------------------------------------------------------------------------------------------------------

const STATES = {
  loading: "Loading models",
  idle: "Ready",
  gone: "The server does not answer",
  calling: "Calling",
  live: "In a call",
};

function state(name, text = STATES[name]) {
  document.body.dataset.state = name;
  $("status-text").textContent = text;
  const busy = name === "live" || name === "calling";
  $("call").disabled = name === "loading" || name === "gone";
  $("call-label").textContent = busy ? (name === "live" ? "End call" : "Cancel") : "Start call";
  $("mute").disabled = !(name === "live" && microphone);
  for (const id of ["text", "send"]) $(id).disabled = name !== "live";
}

function problem(title, text, { list = [], action = "", run = null } = {}) {
  $("problem").hidden = !title;
  $("problem-title").textContent = title || "";
  $("problem-text").textContent = text || "";
  $("problem-list").hidden = !list.length;
  $("problem-list").replaceChildren(...list.map((t) => Object.assign(document.createElement("li"), { textContent: t })));
  $("problem-action").hidden = !action;
  $("problem-action").textContent = action;
  $("problem-action").onclick = run;
}

async function watchServer() {
  for (;;) {
    const now = document.body.dataset.state;
    if (now !== "live" && now !== "calling") {
      try {
        server = await capabilities();
        settings ??= new Settings($("settings-fields"), server.settings, changed);
        $("recording").hidden = !server.recording;
        state(server.ready ? "idle" : "loading");
      } catch {
        state("gone");
      }
    }
    await new Promise((r) => setTimeout(r, document.body.dataset.state === "idle" ? 5000 : 1000));
  }
}

// --- the call -------------------------------------------------------------------------------------------------------

async function start(withMicrophone = true) {
  const mine = ++attempt;
  problem("");
  captions.clear();
  $("latency-value").textContent = "–";
  state("calling");
  try {
    context ??= new AudioContext({ latencyHint: "interactive" });
    await context.resume();
    if (withMicrophone) {
      state("calling", "Asking for the microphone");
      microphone = await openMicrophone($("microphones").value);
      if (mine !== attempt) return release();
      await listMicrophones();
    }
    const key = await callKey();
    if (mine !== attempt) return release();
    levels = new Levels(context);
    levels.onSound = heardReply;
    if (microphone) levels.useMicrophone(microphone);
    state("calling", "Connecting");
    const options = { microphone, context, key, session: settings.session(), on: { event: take, ended, remote } };
    const made = await connect(options);
    if (mine !== attempt) return made.close();
    call = made;
    call.mute(muted);
    document.body.classList.add("talked");
    state("live", call.kind === "webrtc" ? "In a call" : "In a call, over WebSocket");
    requestAnimationFrame(drawLevels);
    if (!microphone) captions.note("No microphone: type below, the reply is spoken.");
  } catch (failure) {
    if (mine !== attempt) return;
    release();
    state("idle");
    explain(failure);
  }
}

async function connect(options) {
  if (query.get("transport") === "websocket" || !window.RTCPeerConnection) return overWebSocket(options);
  try {
    return await overWebRtc(options);
  } catch (failure) {
    if (!(failure instanceof NotConnected)) throw failure;
    problem("WebRTC did not connect, so the call goes over WebSocket.",
      "It works, with a little more delay. These pairs of addresses were tried:", { list: failure.tried });
    return overWebSocket(options);
  }
}

async function openMicrophone(id) {
  if (!navigator.mediaDevices?.getUserMedia) throw new DOMException("", "InsecureContext");
  const audio = { echoCancellation: true, noiseSuppression: true, autoGainControl: true };
  if (id) audio.deviceId = { exact: id };
  return navigator.mediaDevices.getUserMedia({ audio });
}

async function listMicrophones() {
  const devices = await navigator.mediaDevices.enumerateDevices();
  const current = microphone?.getAudioTracks()[0]?.getSettings().deviceId;
  const options = devices.filter((d) => d.kind === "audioinput").map((d) => new Option(d.label || "Microphone", d.deviceId));
  $("microphones").replaceChildren(...options);
  $("microphones").value = current ?? "";
  $("microphones").disabled = options.length < 1;
}

async function callKey() {
  if (!server.key_required) return "";
  let complaint = "";
  for (;;) {
    const key = heldKey() || (await askKey(complaint));
    try {
      const made = await ephemeralKey(key);
      holdKey(key);
      return made;
    } catch (failure) {
      if (!(failure instanceof Refusal) || failure.status !== 401) throw failure;
      holdKey("");
      complaint = "That key was not accepted.";
    }
  }
}

function askKey(complaint) {
  return new Promise((resolve, reject) => {
    $("key-error").hidden = !complaint;
    $("key-error").textContent = complaint;
    $("key-value").value = "";
    $("key").showModal();
    $("key-form").onsubmit = (e) => {
      e.preventDefault();
      $("key").close();
      resolve($("key-value").value.trim());
    };
    const cancel = () => { $("key").close(); reject(new DOMException("", "AbortError")); };
    $("key-cancel").onclick = cancel;
    $("key").oncancel = cancel;
  });
}

function explain(failure) {
  const textOnly = { action: "Call without a microphone", run: () => start(false) };
  switch (failure.name) {
    case "NotAllowedError":
      return problem("The microphone is blocked.", "Allow it for this page in the browser's address bar, then start again.", textOnly);
    case "NotFoundError":
    case "OverconstrainedError":
      return problem("No microphone was found.", "Plug one in, or type instead.", textOnly);
    case "NotReadableError":
      return problem("The microphone is in use.", "Another program holds it. Close that, then start again.", textOnly);
    case "InsecureContext":
      return problem("Browsers give no microphone to this address.",
        "They do over https, and on localhost. Start the server with --tls auto and open its https address.", textOnly);
    case "AbortError":
      return undefined;
  }
  if (failure instanceof Refusal) {
    const wait = failure.retryAfter ? ` Try again in ${failure.retryAfter} s.` : "";
    return problem("The server refused the call.", failure.message + "." + wait);
  }
  return problem("The call could not be placed.", "The server did not answer. Is it running?");
}

function ended(why) {
  const was = call;
  release();
  state("idle", why === "lost" ? "The connection was lost" : "Call ended");
  if (was && why === "lost") problem("The connection was lost.", "The network or the server went away. Start again when it is back.");
}

function release() {
  microphone?.getTracks().forEach((t) => t.stop());
  levels?.close();
  microphone = levels = call = responseId = null;
  $("remote").srcObject = null;
  for (const id of ["mic-level", "out-level"]) $(id).style.transform = "scaleX(0)";
}

function remote(stream) {
  $("remote").srcObject = stream;
  $("remote").play().catch(() => {});
  levels.useOutput(stream);
}

// --- what the server says -------------------------------------------------------------------------------------------

function take(event) {
  captions.take(event);
  switch (event.type) {
    case "input_audio_buffer.speech_stopped":
      spokeUntil = levels.voicedAt;
      break;
    case "response.created":
      responseId = event.response.id;
      break;
    case "session.done":
      if (!["client_closed"].includes(event.reason)) captions.note(`The call ended: ${event.reason.replaceAll("_", " ")}.`);
      break;
    case "error":
      if (event.error.param?.startsWith("session")) settingsError(event.error.message);
      else if (event.error.code !== "response_cancel_not_active") captions.note(event.error.message);
      break;
    case "session.updated":
      settingsError("");
      break;
  }
}

/** The reply became audible: the time since the user's last voice is what the user waited. */
function heardReply(now) {
  if (!responseId || !spokeUntil) return;
  const ms = now - spokeUntil;
  spokeUntil = 0;
  if (ms < 0 || ms > 30000) return;
  captions.latency(responseId, ms);
  $("latency-value").textContent = `${(ms / 1000).toFixed(2)} s`;
}

function drawLevels() {
  if (!levels) return;
  $("mic-level").style.transform = `scaleX(${muted ? 0 : shown(levels.micLevel)})`;
  $("out-level").style.transform = `scaleX(${shown(levels.outLevel)})`;
  requestAnimationFrame(drawLevels);
}

// --- controls -------------------------------------------------------------------------------------------------------

function hangUp() {
  attempt++;
  if (call) return call.close();
  release();
  state("idle");
}

function mute() {
  muted = !muted;
  call?.mute(muted);
  $("mute").setAttribute("aria-pressed", String(muted));
  $("mute").textContent = muted ? "Muted" : "Mute";
}

function changed(session) {
  call?.send({ type: "session.update", session: { type: "realtime", ...session } });
}

function settingsError(text) {
  $("settings-error").hidden = !text;
  $("settings-error").textContent = text;
}

$("call").onclick = () => (call || document.body.dataset.state === "calling" ? hangUp() : start());
$("mute").onclick = mute;
$("microphones").onchange = async () => {
  if (!call) return;
  const stream = await openMicrophone($("microphones").value).catch(explain);
  if (!stream || !call) return;
  await call.useMicrophone(stream);
  microphone.getTracks().forEach((t) => t.stop());
  microphone = stream;
  call.mute(muted);
  levels.useMicrophone(stream);
};
$("say").onsubmit = (e) => {
  e.preventDefault();
  const text = $("text").value.trim();
  if (!text || !call) return;
  $("text").value = "";
  const item = { type: "message", role: "user", content: [{ type: "input_text", text }] };
  if (responseId) call.send({ type: "response.cancel" });
  spokeUntil = performance.now();
  call.send({ type: "conversation.item.create", item });
  call.send({ type: "response.create" });
};
$("open-settings").onclick = () => $("settings").showModal();
$("close-settings").onclick = () => $("settings").close();
$("settings-form").onsubmit = (e) => e.preventDefault();
$("reset-settings").onclick = () => settings?.reset();
document.addEventListener("keydown", (e) => {
  const typing = e.target.closest("input, textarea, select, dialog");
  if (!typing && !e.ctrlKey && !e.metaKey && !e.altKey && e.key.toLowerCase() === "m" && !$("mute").disabled) mute();
});
addEventListener("pagehide", () => call?.close());
navigator.mediaDevices?.addEventListener?.("devicechange", () => microphone && listMicrophones());
captions.onChange = () => {
  const page = document.scrollingElement;
  if (page.scrollHeight - page.scrollTop - page.clientHeight < 240) page.scrollTop = page.scrollHeight;
};

// For tests and the curious: what the page knows of its call.
window.bargein = {
  get call() { return call; },
  get levels() { return levels; },
  get microphone() { return microphone; },
};

watchServer();
