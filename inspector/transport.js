// Two ways to a session, one face: `send(event)`, `mute(on)`, `useMicrophone(stream)`, `close()`, and callbacks
// { event, ended, remote(stream or null) }. WebRTC first; PCM over a WebSocket where it does not connect.

import { Refusal, reason, withKey } from "/pages/api.js";

const PATIENCE_MS = 5000;
const HUSH_MS = 400;

/** Who answers, where the page's own address names an agent (`?agent=NAME`). */
function asked() {
  const agent = new URLSearchParams(location.search).get("agent");
  return agent ? `&model=${encodeURIComponent(agent)}` : "";
}

/** WebRTC did not connect; `tried` says by which candidates. */
export class NotConnected extends Error {
  constructor(tried) {
    super("no connection");
    this.tried = tried;
  }
}

export async function overWebRtc({ microphone, key, session, on }) {
  const pc = new RTCPeerConnection();
  const channel = pc.createDataChannel("oai-events");
  let sender = null;
  if (microphone) sender = pc.addTrack(microphone.getAudioTracks()[0], microphone);
  else pc.addTransceiver("audio", { direction: "recvonly" });
  let voice = null;
  let quiet = null;
  pc.ontrack = (e) => {
    voice = e.track;
    on.remote(e.streams[0] || new MediaStream([e.track]));
  };
  // What the browser has buffered when the reply is cut is not to be heard: silent until that has run out.
  const hush = () => {
    if (!voice) return;
    voice.enabled = false;
    clearTimeout(quiet);
    quiet = setTimeout(() => (voice.enabled = true), HUSH_MS);
  };
  let location = "";
  let over = false;
  const end = (why) => {
    if (over) return;
    over = true;
    pc.close();
    on.ended(why);
  };

  await pc.setLocalDescription(await pc.createOffer());
  await gathered(pc, 1000);
  const form = new FormData();
  form.append("sdp", new Blob([pc.localDescription.sdp], { type: "application/sdp" }));
  form.append("session", new Blob([JSON.stringify({ type: "realtime", ...session })], { type: "application/json" }));
  let reply;
  try {
    reply = await fetch(`/v1/realtime/calls?events=extended${asked()}`, { method: "POST", headers: withKey(key), body: form });
  } catch (problem) {
    pc.close();
    throw problem;
  }
  if (reply.status !== 201) {
    pc.close();
    throw new Refusal(reply.status, await reason(reply), reply.headers.get("Retry-After"));
  }
  location = reply.headers.get("Location");
  const hangUp = () => fetch(`${location}/hangup`, { method: "POST", headers: withKey(key), keepalive: true }).catch(() => {});
  await pc.setRemoteDescription({ type: "answer", sdp: await reply.text() });

  await new Promise((resolve, reject) => {
    const timer = setTimeout(async () => {
      const tried = await candidatesTried(pc);
      over = true;
      hangUp();
      pc.close();
      reject(new NotConnected(tried));
    }, PATIENCE_MS);
    channel.onopen = () => { clearTimeout(timer); resolve(); };
  });
  channel.onmessage = (e) => {
    const event = JSON.parse(e.data);
    if (event.type === "output_audio_buffer.cleared") hush();
    if (event.type === "output_audio_buffer.started" && voice && !voice.enabled) {
      clearTimeout(quiet);
      voice.enabled = true;
    }
    on.event(event);
  };
  channel.onclose = () => end("closed");
  pc.onconnectionstatechange = () => {
    if (pc.connectionState === "failed") end("lost");
    on.connection?.(pc.connectionState);
  };
  return {
    kind: "webrtc",
    id: location.split("/").pop(),
    send: (event) => channel.readyState === "open" && channel.send(JSON.stringify(event)),
    mute: (muted) => sender?.track && (sender.track.enabled = !muted),
    useMicrophone: async (stream) => sender?.replaceTrack(stream.getAudioTracks()[0]),
    flush: () => {},
    close: () => { hangUp(); end("hung up"); },
    stats: () => pc.getStats(),
  };
}

function gathered(pc, patience) {
  if (pc.iceGatheringState === "complete") return Promise.resolve();
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, patience);
    pc.onicegatheringstatechange = () => {
      if (pc.iceGatheringState === "complete") { clearTimeout(timer); resolve(); }
    };
  });
}

async function candidatesTried(pc) {
  const stats = new Map((await pc.getStats()).entries());
  const name = (c) => (c ? `${c.candidateType} ${c.protocol} ${c.address || "(hidden)"}:${c.port}` : "?");
  const pairs = [...stats.values()].filter((s) => s.type === "candidate-pair");
  const out = pairs.map((p) => `${name(stats.get(p.localCandidateId))} → ${name(stats.get(p.remoteCandidateId))}: ${p.state}`);
  return out.length ? out : [`no pair of addresses to try (ICE ${pc.iceConnectionState})`];
}

export async function overWebSocket({ microphone, context, key, session, on }) {
  await context.audioWorklet.addModule("/pages/worklet.js");
  const address = new URL(`/v1/realtime?events=extended${asked()}`, location.href);
  address.protocol = address.protocol.replace("http", "ws");
  const protocols = key ? ["realtime", `openai-insecure-api-key.${key}`] : ["realtime"];
  const ws = new WebSocket(address, protocols);
  await new Promise((resolve, reject) => {
    ws.onopen = resolve;
    ws.onerror = () => reject(new Error("the WebSocket was refused"));
  });
  const speaker = new AudioWorkletNode(context, "speaker", { numberOfInputs: 0, outputChannelCount: [1] });
  const out = context.createMediaStreamDestination();
  speaker.connect(out);
  on.remote(out.stream);
  const mic = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0 });
  let source = null;
  const listen = (stream) => {
    source?.disconnect();
    source = context.createMediaStreamSource(stream);
    source.connect(mic);
  };
  const send = (event) => ws.readyState === WebSocket.OPEN && ws.send(JSON.stringify(event));
  mic.port.onmessage = (e) => send({ type: "input_audio_buffer.append", audio: toBase64(e.data) });
  if (microphone) listen(microphone);
  ws.onmessage = (e) => {
    const event = JSON.parse(e.data);
    if (event.type === "response.output_audio.delta") {
      const pcm = fromBase64(event.delta);
      speaker.port.postMessage(pcm, [pcm]);
      return;
    }
    if (event.type === "output_audio_buffer.cleared") speaker.port.postMessage(null);
    on.event(event);
  };
  let over = false;
  const end = (why) => {
    if (over) return;
    over = true;
    source?.disconnect();
    mic.port.onmessage = null;
    speaker.disconnect();
    ws.close();
    on.ended(why);
  };
  ws.onclose = (e) => end(e.code === 1000 ? "closed" : "lost");
  send({ type: "session.update", session: { type: "realtime", ...session } });
  let stream = microphone;
  return {
    kind: "websocket",
    id: "",
    send,
    mute: (muted) => stream?.getAudioTracks().forEach((t) => (t.enabled = !muted)),
    useMicrophone: async (chosen) => { stream = chosen; listen(chosen); },
    flush: () => speaker.port.postMessage(null),
    close: () => { send({ type: "session.close" }); end("hung up"); },
    stats: async () => new Map(),
  };
}

function toBase64(buffer) {
  const bytes = new Uint8Array(buffer);
  let text = "";
  for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode(...bytes.subarray(i, i + 4096));
  return btoa(text);
}

function fromBase64(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes.buffer;
}
