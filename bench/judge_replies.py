"""Do replies say what their transcript says? Calls with recorded questions, judged by another recognizer.

    python bench/judge_replies.py call OUT [--url URL] [WAV ...]     # the project's environment, a server running
    python bench/judge_replies.py judge OUT                          # an environment with faster-whisper

The first writes each reply as OUT/NAME.wav with its transcript in OUT/replies.json; the second transcribes them with
faster-whisper (small.en where it is at hand, else any CTranslate2 folder given with --model) and prints word errors.
Numbers are compared as words. Exit status 1 where a reply is empty or all errors together exceed a tenth of the words.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


async def _call(url: str, wavs: list[Path], out: Path) -> list[dict[str, str]]:
    from bargein.client.audio import read_wav, write_wav
    from bargein.client.session import RealtimeClient
    from bargein.client.turns import Microphone, converse

    replies = []
    for wav in wavs:
        async with RealtimeClient(url) as client:
            await client.wait("session.created", 0, 15)
            mic = Microphone(client)
            reply = await converse(client, mic, read_wav(wav), 60)
            await mic.stop()
        write_wav(out / wav.name, reply.audio)
        replies.append({"wav": wav.name, "heard": reply.user_text, "said": reply.text})
        print(f"{wav.name:22} {reply.user_text!r} -> {reply.text!r}", flush=True)
    return replies


def _judge(out: Path, model: str) -> int:
    from faster_whisper import WhisperModel

    sys.path.insert(0, str(ROOT / ".ns"))
    from bargein.models.bench_words import normal_words, word_errors

    recognizer = WhisperModel(model, device="cpu", compute_type="float32")
    errors = words = empty = 0
    for reply in json.loads((out / "replies.json").read_text(encoding="utf-8")):
        said = normal_words(reply["said"])
        segments, _ = recognizer.transcribe(str(out / reply["wav"]), language="en", beam_size=5)
        heard = " ".join(s.text.strip() for s in segments)
        wrong = word_errors(said, normal_words(heard))
        errors, words, empty = errors + wrong, words + len(said), empty + (not said)
        print(f"{reply['wav']:22} {wrong} of {len(said)}: {reply['said']!r} heard as {heard!r}")
    print(f"replies judged: {words} words, {errors} wrong: {100 * errors / max(1, words):.1f} %; empty replies: {empty}")
    return int(bool(empty) or errors > 0.1 * words)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("call", "judge"))
    parser.add_argument("out", type=Path)
    parser.add_argument("wavs", nargs="*", type=Path)
    parser.add_argument("--url", default="ws://127.0.0.1:8000/v1/realtime")
    parser.add_argument("--model", default="base.en", help="a faster-whisper model or its folder")
    args = parser.parse_args()
    if args.what == "judge":
        return _judge(args.out, args.model)
    data = ROOT / "tests" / "data"
    wavs = args.wavs or [*sorted(data.glob("austen-*.wav")), *sorted((data / "questions").glob("*.wav"))]
    args.out.mkdir(parents=True, exist_ok=True)
    replies = asyncio.run(_call(args.url, wavs, args.out))
    (args.out / "replies.json").write_text(json.dumps(replies, indent=1), encoding="utf-8")
    return int(any(not r["said"] for r in replies))


if __name__ == "__main__":
    sys.exit(main())
