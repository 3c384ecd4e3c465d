"""Media files made to hurt: each is refused within seconds, in bounded memory, and the server goes on."""

from __future__ import annotations

import io
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import openai
import pytest

from .conftest import Served
from .test_audio import DATA, as_wav, clip


def wav_header(rate: int = 16000, channels: int = 1, bits: int = 16, size: int = 3200, kind: int = 1) -> bytes:
    block = channels * bits // 8
    fields = struct.pack("<HHIIHH", kind, channels, rate, rate * block & 0xFFFFFFFF, block & 0xFFFF, bits)
    riff = b"RIFF" + struct.pack("<I", (36 + size) & 0xFFFFFFFF) + b"WAVEfmt " + struct.pack("<I", 16)
    return riff + fields + b"data" + struct.pack("<I", size)


def video_only() -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for _ in range(5):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")))
        container.mux(stream.encode(None))
    return out.getvalue()


def silent_hours() -> bytes:
    """Ten hours of silence in a small file."""
    out = io.BytesIO()
    with av.open(out, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000 * 600), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        for _ in range(60):
            frame.pts = None
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return out.getvalue()


NOISE = np.random.default_rng(0).bytes(40_000)
GOOD = (DATA / "austen-0880.wav").read_bytes()
MP4 = b"\x00\x00\x00\x18ftypisom\x00\x00\x02\x00isomiso2"
FLAC_LIE = b"fLaC\x80\x00\x00\x22" + struct.pack(">HH", 4096, 4096) + bytes(6) + b"\x03\xe8\x00\xf0\xff\xff\xff\xff" + bytes(16)

FILES: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "one byte": lambda: b"R",
    "text": lambda: b"this is not audio at all " * 400,
    "noise": lambda: NOISE,
    "header only": lambda: GOOD[:44],
    "cut header": lambda: GOOD[:20],
    "no samples": lambda: wav_header(size=0),
    "1 Hz": lambda: wav_header(rate=1) + bytes(3200),
    "768 kHz": lambda: wav_header(rate=768_000) + bytes(76800),
    "4 GHz": lambda: wav_header(rate=0xFFFFFFFF) + bytes(3200),
    "0 Hz": lambda: wav_header(rate=0) + bytes(3200),
    "12 channels": lambda: wav_header(channels=12) + bytes(38400),
    "65535 channels": lambda: wav_header(channels=65535) + bytes(38400),
    "1000 bits": lambda: wav_header(bits=1000) + bytes(38400),
    "unknown codec": lambda: wav_header(kind=0x4242) + bytes(3200),
    "a lying flac": lambda: FLAC_LIE + NOISE,
    "a lying ogg": lambda: b"OggS" + NOISE,
    "a lying mp4": lambda: MP4 + struct.pack(">I", 0x7FFFFFFF) + b"moov" + NOISE,
    "video without sound": video_only,
    "ten silent hours": silent_hours,
    "a playlist of files": lambda: b"#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
    "a list to join": lambda: b"ffconcat version 1.0\nfile '/etc/passwd'\n",
    "a playlist of addresses": lambda: b"#EXTM3U\n#EXTINF:5,\nhttp://127.0.0.1:9/a.mp3\n",
    "an image": lambda: b"\x89PNG\r\n\x1a\n" + NOISE,
    "a zip": lambda: b"PK\x03\x04" + NOISE,
}


def resident(pid: int) -> int:
    """Megabytes of a process and its children."""
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(entry.name) == pid or int(stat[1]) == pid:
                    total += int(stat[21]) * os.sysconf("SC_PAGE_SIZE")
            except OSError:
                continue
    return total >> 20


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused(client: openai.OpenAI, server: Served, name: str) -> None:
    data = FILES[name]()
    before, started = resident(server.process.pid), time.monotonic()
    with pytest.raises(openai.APIStatusError) as refused:
        client.audio.transcriptions.create(file=("a.wav", data), model="whisper-1")
    assert refused.value.status_code == 400, refused.value.body
    body: Any = refused.value.body
    assert body["param"] == "file" and body["code"] == "invalid_audio"
    assert time.monotonic() - started < 5
    assert resident(server.process.pid) - before < 200
    assert client.models.list().data


def test_a_file_that_is_cut_off_is_heard_to_where_it_ends(client: openai.OpenAI) -> None:
    cut = client.audio.transcriptions.create(file=("a.wav", GOOD[: len(GOOD) * 2 // 3]), model="whisper-1").text
    assert cut.lower().startswith("he was not")
    claims = wav_header(size=0x7FFFFFFF) + GOOD[44:]  # 2 GB are claimed, 90 kB are there
    assert client.audio.transcriptions.create(file=("a.wav", claims), model="whisper-1").text.lower().startswith("he was")


def test_the_server_goes_on(client: openai.OpenAI) -> None:
    said = client.audio.transcriptions.create(file=("a.wav", as_wav(clip("austen-0880"))), model="whisper-1").text
    assert said.lower().startswith("he was not an ill")
