// Audio thread of the WebSocket fallback: microphone to 24 kHz PCM in 20 ms pieces, PCM to the speakers.

const RATE = 24000;
const TAPS = 16; // on each side of a windowed sinc

/** Changes the sample rate of a stream; keeps what it needs between calls. */
class Resampler {
  constructor(from, to) {
    this.step = from / to;
    this.cut = Math.min(1, to / from);
    this.at = TAPS;
    this.held = new Float32Array(TAPS);
  }

  push(input) {
    if (this.step === 1) return input.slice();
    const x = new Float32Array(this.held.length + input.length);
    x.set(this.held);
    x.set(input, this.held.length);
    const out = [];
    while (this.at + TAPS < x.length) {
      const middle = Math.floor(this.at);
      let sum = 0;
      for (let k = middle - TAPS + 1; k <= middle + TAPS; k++) {
        const d = k - this.at;
        const w = 0.5 + 0.5 * Math.cos((Math.PI * d) / TAPS);
        const a = Math.PI * d * this.cut;
        sum += (x[k] || 0) * w * this.cut * (Math.abs(a) < 1e-9 ? 1 : Math.sin(a) / a);
      }
      out.push(sum);
      this.at += this.step;
    }
    const keep = Math.max(0, Math.floor(this.at) - TAPS);
    this.held = x.slice(keep);
    this.at -= keep;
    return Float32Array.from(out);
  }
}

class Microphone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.resampler = new Resampler(sampleRate, RATE);
    this.frame = new Int16Array(RATE / 50);
    this.filled = 0;
  }

  process([input]) {
    const mono = input[0] || new Float32Array(128);
    for (const v of this.resampler.push(mono)) {
      this.frame[this.filled++] = Math.max(-1, Math.min(1, v)) * 32767;
      if (this.filled === this.frame.length) {
        const whole = this.frame.slice().buffer;
        this.port.postMessage(whole, [whole]);
        this.filled = 0;
      }
    }
    return true;
  }
}

class Speaker extends AudioWorkletProcessor {
  constructor() {
    super();
    this.clear();
    this.port.onmessage = (e) => {
      if (e.data === null) return this.clear();
      const pcm = new Int16Array(e.data);
      const samples = Float32Array.from(pcm, (v) => v / 32768);
      this.queue.push(this.resampler.push(samples));
    };
  }

  clear() {
    this.queue = [];
    this.offset = 0;
    this.resampler = new Resampler(RATE, sampleRate);
  }

  process(_, [output]) {
    const out = output[0];
    let n = 0;
    while (n < out.length && this.queue.length) {
      const head = this.queue[0];
      const take = Math.min(out.length - n, head.length - this.offset);
      out.set(head.subarray(this.offset, this.offset + take), n);
      n += take;
      this.offset += take;
      if (this.offset >= head.length) { this.queue.shift(); this.offset = 0; }
    }
    return true;
  }
}

registerProcessor("microphone", Microphone);
registerProcessor("speaker", Speaker);
