// The settings form, made from the server's own description of its settings.

const STORE = "bargein.settings";
const SKIP = new Set(["type", "model", "input_format", "output_format", "tools", "tool_choice", "noise_reduction",
  "output_modalities", "transcription.model", "max_output_tokens", "eou.thresholds"]);
const GROUPS = [
  ["The reply", ["instructions", "voice", "speed", "temperature"]],
  ["Turn taking", ["profile", "turn_detection.type", "turn_detection.eagerness", "turn_detection.interrupt_response",
    "barge_in.mode", "eou.kind", "transcription.language"]],
];

export class Settings {
  /** `onChange(session)`: a nested object of what was changed. */
  constructor(container, description, onChange) {
    this.description = description.filter((f) => !SKIP.has(f.path));
    this.onChange = onChange;
    this.changed = JSON.parse(localStorage.getItem(STORE) || "{}");
    this.container = container;
    this.draw();
  }

  /** Everything that differs from the defaults, nested as in a session.update. */
  session(only = this.changed) {
    const out = {};
    for (const [name, value] of Object.entries(only)) {
      const path = name.split(".");
      let node = out;
      for (const part of path.slice(0, -1)) node = node[part] ??= {};
      node[path.at(-1)] = value;
    }
    return out;
  }

  reset() {
    this.changed = {};
    localStorage.removeItem(STORE);
    this.draw();
  }

  draw() {
    const byPath = new Map(this.description.map((f) => [f.path, f]));
    const groups = GROUPS.map(([title, paths]) => [title, paths.map((p) => byPath.get(p)).filter(Boolean)]);
    const named = new Set(GROUPS.flatMap(([, paths]) => paths));
    const rest = this.description.filter((f) => !named.has(f.path));
    this.container.replaceChildren(...groups.map(([title, fields]) => this.group("fieldset", "legend", title, fields)),
      this.group("details", "summary", "All others", rest));
  }

  group(outer, inner, title, fields) {
    const box = document.createElement(outer);
    box.append(Object.assign(document.createElement(inner), { textContent: title }), ...fields.map((f) => this.field(f)));
    return box;
  }

  field(f) {
    const box = Object.assign(document.createElement("div"), { className: "field" });
    const id = `set-${f.path.replaceAll(".", "-")}`;
    const label = Object.assign(document.createElement("label"), { htmlFor: id, textContent: nice(f.path) });
    const input = control(f);
    input.id = id;
    const value = f.name in this.changed ? this.changed[f.name] : f.default;
    if (f.kind === "flag") input.checked = Boolean(value);
    else input.value = value ?? "";
    if (input.tagName === "TEXTAREA") box.classList.add("wide");
    box.classList.toggle("changed", f.name in this.changed);
    box.append(label, input);
    if (f.doc) {
      const doc = Object.assign(document.createElement("small"), { textContent: f.doc, id: `${id}-doc` });
      input.setAttribute("aria-describedby", doc.id);
      box.append(doc);
    }
    input.addEventListener("change", () => {
      if (!input.checkValidity()) return input.reportValidity();
      const now = read(f, input);
      if (same(now, f.default)) delete this.changed[f.name];
      else this.changed[f.name] = now;
      box.classList.toggle("changed", f.name in this.changed);
      localStorage.setItem(STORE, JSON.stringify(this.changed));
      this.onChange(this.session({ [f.name]: now }));
    });
    return box;
  }
}

const same = (a, b) => JSON.stringify(a ?? null) === JSON.stringify(b ?? null);

const NAMES = { "turn_detection.type": "Turn detection", "eou.kind": "End-of-turn model", "barge_in.mode": "Speaking over a reply",
  "transcription.language": "Language you speak", "turn_detection.interrupt_response": "Speech may stop a reply" };

function nice(path) {
  if (NAMES[path]) return NAMES[path];
  const name = path.replace(/^turn_detection\./, "").replace(/^(barge_in|eou|transcription|pacer)\./, "$1: ");
  const words = name.replaceAll("_ms", " (ms)").replaceAll("_s", (m, i) => (i + 2 === name.length ? " (s)" : m)).replaceAll("_", " ");
  return words[0].toUpperCase() + words.slice(1).replace(/^ou:/, "nd of turn:");
}

function control(f) {
  if (f.kind === "choice") {
    const select = document.createElement("select");
    if (f.nullable) select.append(new Option("off", ""));
    for (const c of f.choices) select.append(new Option(c.replaceAll("_", " "), c));
    return select;
  }
  if (f.kind === "flag") return Object.assign(document.createElement("input"), { type: "checkbox" });
  if (f.kind === "number" || f.kind === "integer") {
    const step = f.kind === "integer" ? 1 : "any";
    return Object.assign(document.createElement("input"), { type: "number", min: f.min, max: f.max, step, required: !f.nullable,
      placeholder: f.nullable ? "automatic" : "" });
  }
  if (f.path === "instructions") {
    return Object.assign(document.createElement("textarea"), { maxLength: f.max_length, placeholder: "What it should be and do" });
  }
  return Object.assign(document.createElement("input"), { type: "text", maxLength: f.max_length || 256 });
}

function read(f, input) {
  if (f.kind === "flag") return input.checked;
  if (f.nullable && input.value === "") return null;
  if (f.kind === "number" || f.kind === "integer") return Number(input.value);
  return input.value;
}
