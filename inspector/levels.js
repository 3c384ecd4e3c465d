// Levels of both sides, and from them the voice-to-voice time as ears have it.

const EVERY_MS = 20;
const VOICED = 0.015;
const AUDIBLE = 0.006;

export class Levels {
  constructor(context) {
    this.context = context;
    this.mic = this.out = null;
    this.micLevel = this.outLevel = 0;
    this.voicedAt = 0; // when the microphone last was louder than the room
    this.audibleAt = 0; // when the reply last could be heard
    this.audibleSince = 0; // when the sound that is going on began
    this.floor = 0.002;
    this.buffer = new Float32Array(1024);
    this.onSound = () => {};
    this.timer = setInterval(() => this.look(), EVERY_MS);
  }

  watch(stream) {
    const node = this.context.createAnalyser();
    node.fftSize = 1024;
    const source = this.context.createMediaStreamSource(stream);
    source.connect(node);
    return { node, source };
  }

  useMicrophone(stream) {
    this.mic?.source.disconnect();
    this.mic = this.watch(stream);
  }

  useOutput(stream) {
    this.out?.source.disconnect();
    this.out = this.watch(stream);
  }

  level(watched) {
    if (!watched) return 0;
    watched.node.getFloatTimeDomainData(this.buffer);
    const n = Math.ceil((EVERY_MS / 1000) * this.context.sampleRate);
    let sum = 0;
    for (let i = this.buffer.length - n; i < this.buffer.length; i++) sum += this.buffer[i] ** 2;
    return Math.sqrt(sum / n);
  }

  look() {
    const now = performance.now();
    this.micLevel = this.level(this.mic);
    this.outLevel = this.level(this.out);
    if (this.micLevel < this.floor * 3) this.floor += 0.02 * (this.micLevel - this.floor);
    if (this.micLevel > Math.max(VOICED, this.floor * 4)) this.voicedAt = now;
    if (this.outLevel > AUDIBLE) {
      if (now - this.audibleAt > 300) {
        this.audibleSince = now;
        this.onSound(now);
      }
      this.audibleAt = now;
    }
  }

  close() {
    clearInterval(this.timer);
    this.mic?.source.disconnect();
    this.out?.source.disconnect();
  }
}

/** A level for a meter: 0 to 1 on a scale of decibels. */
export const shown = (level) => Math.max(0, Math.min(1, 1 + (20 * Math.log10(level + 1e-6)) / 54));
