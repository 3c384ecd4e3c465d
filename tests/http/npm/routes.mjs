// Every route that the openai package knows, against BASE; prints what came back as one JSON object.
import { createReadStream, readFileSync } from "node:fs";
import OpenAI from "openai";

const [base, wav] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const model = "gpt-4o-mini";
const out = {};

out.models = (await client.models.list()).data.map((m) => m.id);
out.model = (await client.models.retrieve(out.models[0])).id;
const chat = await client.chat.completions.create({ model, messages, temperature: 0 });
out.chat = chat.choices[0].message.content;
out.chatStream = "";
for await (const chunk of await client.chat.completions.create({ model, messages, temperature: 0, stream: true }))
  out.chatStream += chunk.choices[0]?.delta?.content ?? "";
out.completion = (await client.completions.create({ model, prompt: "One, two, three,", max_tokens: 8, temperature: 0 })).choices[0].text;
const response = await client.responses.create({ model, input: messages[0].content, temperature: 0 });
out.response = response.output_text;
out.kept = (await client.responses.retrieve(response.id)).output_text;
out.asked = (await client.responses.inputItems.list(response.id)).data[0].content[0].text;
out.responseStream = "";
for await (const event of await client.responses.create({ model, input: messages[0].content, temperature: 0, stream: true }))
  if (event.type === "response.output_text.delta") out.responseStream += event.delta;
await client.responses.delete(response.id);
out.forgotten = await client.responses.retrieve(response.id).catch((problem) => problem.constructor.name);
const tool = { type: "function", function: { name: "lights", description: "Turn the lights on or off",
  parameters: { type: "object", properties: { on: { type: "boolean" } }, required: ["on"] } } };
const called = await client.chat.completions.create({ model, messages: [{ role: "user", content: "Lights on, please." }],
  tools: [tool], tool_choice: { type: "function", function: { name: "lights" } } });
out.toolArguments = JSON.parse(called.choices[0].message.tool_calls[0].function.arguments);
out.embedding = (await client.embeddings.create({ model: "text-embedding-3-small", input: "hello" })).data[0].embedding.length;
out.transcript = (await client.audio.transcriptions.create({ model: "whisper-1", file: createReadStream(wav) })).text;
const verbose = await client.audio.transcriptions.create({ model: "whisper-1", file: createReadStream(wav),
  response_format: "verbose_json", timestamp_granularities: ["word"] });
out.words = verbose.words.map((w) => w.word);
out.transcriptStream = "";
for await (const event of await client.audio.transcriptions.create({ model: "gpt-4o-transcribe", file: createReadStream(wav), stream: true }))
  if (event.type === "transcript.text.done") out.transcriptStream = event.text;
out.translation = (await client.audio.translations.create({ model: "whisper-1", file: createReadStream(wav) })).text;
const speech = await client.audio.speech.create({ model: "tts-1", voice: "alloy", input: "Hello there.", response_format: "wav" });
out.speech = Buffer.from(await speech.arrayBuffer()).subarray(0, 4).toString();
const refused = (ask) => ask.then(() => "accepted", (problem) => [problem.constructor.name, problem.status, problem.param]);
out.badField = await refused(client.chat.completions.create({ model, messages, temperature: 9 }));
out.badFile = await refused(client.audio.transcriptions.create({ model: "whisper-1", file: new File([readFileSync(process.argv[1])], "a.wav") }));
console.log(JSON.stringify(out));
