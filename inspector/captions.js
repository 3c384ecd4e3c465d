// The conversation as it is said: partials that settle, words that light up as they are heard, and what was not heard
// struck through.

const WORD_DELAY_MS = 90; // about what the network and the browser's own buffer add before a word can be heard

export class Captions {
  constructor(list) {
    this.list = list;
    this.items = new Map();
    this.replies = new Map(); // response id to its block
    this.onChange = () => {};
  }

  clear() {
    this.list.replaceChildren();
    this.items.clear();
    this.replies.clear();
  }

  note(text) {
    const li = document.createElement("li");
    const p = Object.assign(document.createElement("p"), { className: "note", textContent: text });
    li.append(p);
    this.list.append(li);
    this.onChange();
  }

  take(event) {
    switch (event.type) {
      case "input_audio_buffer.speech_started":
        this.you(event.item_id);
        break;
      case "input_audio_buffer.partial_transcription":
        this.partial(this.you(event.item_id), event.text, event.stable_chars);
        break;
      case "conversation.item.input_audio_transcription.completed":
        this.final(event.item_id, event.transcript);
        break;
      case "conversation.item.input_audio_transcription.failed":
        this.final(event.item_id, "", "could not be transcribed");
        break;
      case "input_audio_buffer.discarded":
        this.drop(event.item_id);
        break;
      case "response.output_audio_transcript.delta":
        this.word(event.response_id, event.delta, true);
        break;
      case "response.output_text.delta":
        this.word(event.response_id, event.delta, false);
        break;
      case "response.done":
        this.done(event.response);
        break;
      case "conversation.item.added":
        this.typed(event.item);
        break;
    }
  }

  block(className, who) {
    const li = document.createElement("li");
    li.className = className;
    const head = Object.assign(document.createElement("p"), { className: "who" });
    head.append(Object.assign(document.createElement("span"), { textContent: who }), document.createElement("em"));
    const words = Object.assign(document.createElement("p"), { className: "words" });
    li.append(head, words);
    this.list.append(li);
    this.onChange();
    return li;
  }

  you(id) {
    let li = this.items.get(id);
    if (!li) {
      li = this.block("you", "You");
      li.querySelector(".words").textContent = "…";
      this.items.set(id, li);
    }
    return li;
  }

  partial(li, text, stable) {
    const words = li.querySelector(".words");
    const rest = Object.assign(document.createElement("span"), { className: "unsure", textContent: text.slice(stable) });
    words.replaceChildren(text.slice(0, stable), rest);
    this.onChange();
  }

  final(id, text, problem = "nothing was said") {
    const li = this.items.get(id);
    if (!li) return;
    if (!text.trim()) {
      li.className = "you";
      li.querySelector(".words").textContent = `(${problem})`;
      return;
    }
    li.classList.add("final");
    li.querySelector(".words").textContent = text;
    this.onChange();
  }

  drop(id) {
    this.items.get(id)?.remove();
    this.items.delete(id);
  }

  typed(item) {
    if (item.role !== "user" || item.content?.[0]?.type !== "input_text" || this.items.has(item.id)) return;
    const li = this.block("you final", "You, typed");
    li.querySelector(".words").textContent = item.content[0].text;
    this.items.set(item.id, li);
  }

  reply(id) {
    let li = this.replies.get(id);
    if (!li) {
      li = this.block("reply", "Reply");
      this.replies.set(id, li);
    }
    return li;
  }

  word(id, text, spoken) {
    const words = this.reply(id).querySelector(".words");
    const shown = words.firstChild ? text : text.trimStart();
    const span = Object.assign(document.createElement("span"), { className: "word now", textContent: shown });
    words.querySelector(".now")?.classList.remove("now");
    words.append(span);
    if (spoken) setTimeout(() => span.classList.add("heard"), WORD_DELAY_MS);
    else span.classList.add("heard");
    this.onChange();
  }

  latency(id, ms) {
    this.reply(id).querySelector("em").textContent = `after ${(ms / 1000).toFixed(2)} s`;
  }

  done(response) {
    const li = this.replies.get(response.id);
    if (!li) return;
    li.querySelector(".now")?.classList.remove("now");
    if (response.status === "completed") return;
    const item = response.output.find((o) => o.type === "message");
    const heard = (item?.content?.[0]?.transcript ?? item?.content?.[0]?.text ?? "").trim();
    this.strike(li, heard);
    const said = {
      cancelled: "stopped: you spoke over it",
      failed: "failed",
      incomplete: "cut at its length limit",
    };
    const mine = response.status_details?.reason === "client_cancelled" ? "stopped" : said[response.status];
    const tail = Object.assign(document.createElement("p"), { className: "tail", textContent: mine });
    li.append(tail);
    this.onChange();
  }

  /** Strike out what comes after `heard`, which is a beginning of the words; its last word may end in a dash. */
  strike(li, heard) {
    const whole = heard.endsWith("-") ? heard.slice(0, -1) : heard;
    let text = "";
    for (const span of li.querySelectorAll(".word")) {
      text += span.textContent;
      if (text.trim().length > whole.length) span.classList.add("unheard");
    }
  }
}
