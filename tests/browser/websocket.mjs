// A call with OpenAI's agents client over its own WebSocket: a spoken question, or a tool, or speech over a reply.
// node websocket.mjs URL speak|tool|interrupt FILE: 24 kHz mono 16-bit samples of what is said. Prints what was heard, as JSON.
import { readFileSync } from "node:fs";
import { RealtimeAgent, RealtimeSession, tool } from "@openai/agents-realtime";

const [url, what, file] = process.argv.slice(2);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const heard = { errors: [], audio: 0, interrupted: 0, rooms: [], history: [] };
const thermometer = tool({
  name: "get_room_temperature",
  description: "Temperature of a room",
  parameters: { type: "object", properties: { room: { type: "string" } }, required: ["room"], additionalProperties: false },
  strict: false,
  execute: async ({ room }) => (heard.rooms.push(room), "31 degrees"),
});
const agent = new RealtimeAgent({ name: "host", instructions: "Answer briefly.", tools: what === "tool" ? [thermometer] : [] });
const session = new RealtimeSession(agent, { transport: "websocket", model: "gpt-realtime" });
session.on("error", (e) => heard.errors.push(JSON.stringify(e)));
session.on("audio", (e) => (heard.audio += e.data.byteLength));
session.on("audio_interrupted", () => (heard.interrupted += 1));
session.on("history_updated", (history) => (heard.history = history));
const text = (role) => heard.history.filter((i) => i.role === role && i.status === "completed")
  .map((i) => i.content.map((c) => c.transcript ?? c.text ?? "").join("")).join(" ").trim();
const until = async (test) => {
  for (let n = 0; n < 600 && !test(); n++) await pause(100);
};

async function say(pcm) {
  const start = performance.now();
  for (let at = 0; at < pcm.length + 48000 * 2; at += 960) {
    const frame = new Uint8Array(960);
    frame.set(pcm.subarray(at, at + 960));
    session.sendAudio(frame.buffer);
    await pause(start + (at / 960) * 20 - performance.now());
  }
}

await session.connect({ apiKey: "none", url });
if (what === "tool") {
  session.sendMessage("How warm is the kitchen?");
  await until(() => heard.rooms.length && /31 degrees/.test(text("assistant")));
} else {
  if (what === "interrupt") {
    session.sendMessage("Tell me a story.");
    await until(() => heard.audio > 48000);
  }
  await say(new Uint8Array(readFileSync(file)));
  await until(() => text("user").length && text("assistant").length && (what !== "interrupt" || heard.interrupted));
}
console.log(JSON.stringify({ ...heard, history: undefined, user: text("user"), assistant: text("assistant") }));
session.close();
process.exit(0);
