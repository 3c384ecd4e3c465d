"""A process of its own that decodes media files, each in a child, so that a hostile one can take down nothing but that.

`python -m bargein.pipeline.media_worker` has a Unix socket (SOCK_SEQPACKET) as its stdin. Each message is JSON, {"path",
"max_s"}, with one end of a stream socket; a child answers there: its process id (4 bytes, little-endian), and, when it has
been sent a byte, frames of a 4-byte length: 16 kHz float32 mono, then an empty frame and one JSON line, {} or {"error"}.
A child has little memory, no files to write, and FFmpeg may open nothing but the file. It ends with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any, BinaryIO

RATE = 16000
BLOCK = RATE  # samples of a frame: a second
MEMORY = 2 * 2**30
NICE = 10  # calls come first
PR_SET_PDEATHSIG = 1
CPU_S = 3600
MIN_RATE, MAX_RATE, MAX_CHANNELS = 4000, 192000, 8
# A second of speech is never this small; a file that says otherwise is made to unpack without end.
LEAST_BYTES_PER_S, AFTER_S = 125, 120
DEMUXERS = (
    "wav,w64,mp3,ogg,flac,aac,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,amr,aiff,asf,au,caf,mpegts,mpeg,avi,ac3,eac3,tta,wv,gsm,flv"
)
NOTES = {"InvalidDataError": "not audio, or damaged", "EOFError": "ends before it begins"}


class Refused(Exception):
    """The file is not to be decoded; the message is for the caller."""


def main() -> int:
    import av  # before the requests: the imports are most of the work
    import numpy  # noqa: F401  used by av's frames

    os.nice(NICE)
    av.logging.set_level(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    libc = ctypes.CDLL(None)
    control = socket.socket(fileno=os.dup(0))
    while True:
        message, fds, _, _ = socket.recv_fds(control, 65536, 1)
        if not message:
            return 0  # the server has gone
        if os.fork() == 0:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            control.close()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            with contextlib.suppress(OSError), socket.socket(fileno=fds[0]) as answer:
                _answer(json.loads(message), answer)
            os._exit(0)
        for fd in fds:
            os.close(fd)


def _answer(ask: dict[str, Any], answer: socket.socket) -> None:
    """The whole of a child's life. OSError where nobody listens."""
    answer.sendall(struct.pack("<I", os.getpid()))
    if not answer.recv(1):
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    out = answer.makefile("wb")
    end: dict[str, Any] = {}
    try:
        with open(ask["path"], "rb") as file:
            decode(file, float(ask["max_s"]), out)
    except Refused as problem:
        end = {"error": str(problem)}
    except BrokenPipeError:
        return
    except MemoryError:
        end = {"error": "decoding takes too much memory"}
    except Exception as problem:  # whatever a decoder does with a bad file
        end = {"error": NOTES.get(type(problem).__name__, f"cannot be decoded ({type(problem).__name__})")}
    out.write(struct.pack("<I", 0) + json.dumps(end).encode() + b"\n")
    out.flush()


def decode(file: BinaryIO, max_s: float, out: BinaryIO) -> None:
    """The file's first audio track as frames on `out`. Raises Refused, and whatever FFmpeg raises."""
    import av

    size = os.fstat(file.fileno()).st_size
    options = {"format_whitelist": DEMUXERS, "protocol_whitelist": "none", "probesize": "2000000", "max_streams": "32"}
    with av.open(file, mode="r", options=options, metadata_errors="ignore") as container:
        if not container.streams.audio:
            raise Refused("holds no audio track")
        stream = container.streams.audio[0]
        codec = stream.codec_context
        codec.thread_count = 1
        if not MIN_RATE <= codec.sample_rate <= MAX_RATE:
            raise Refused(f"has a sample rate of {codec.sample_rate} Hz; {MIN_RATE} to {MAX_RATE} are read")
        if not 1 <= codec.channels <= MAX_CHANNELS:
            raise Refused(f"has {codec.channels} channels; up to {MAX_CHANNELS} are read")
        told = float(stream.duration * stream.time_base) if stream.duration and stream.time_base else 0.0
        if told > max_s:
            raise Refused(f"lasts {told:.0f} s; at most {max_s:.0f} are allowed")
        resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
        sent, pending, damaged = 0, bytearray(), 0

        def send(last: bool = False) -> None:
            nonlocal sent
            while len(pending) >= 4 * BLOCK or (last and pending):
                block = bytes(pending[: 4 * BLOCK])
                del pending[: 4 * BLOCK]
                sent += len(block) // 4
                seconds = sent / RATE
                if seconds > max_s:
                    raise Refused(f"lasts more than the {max_s:.0f} s allowed")
                if seconds > AFTER_S and size / seconds < LEAST_BYTES_PER_S:
                    raise Refused("unpacks to far more than a recording of its size can hold")
                out.write(struct.pack("<I", len(block)) + block)
                out.flush()

        for packet in container.demux(stream):
            try:
                frames = packet.decode()
            except av.InvalidDataError:
                damaged += 1
                if damaged > 100 and sent == 0:
                    raise Refused("not audio, or damaged") from None
                continue
            for frame in frames:
                for piece in resampler.resample(frame):
                    pending += piece.to_ndarray().tobytes()
            send()
        for piece in resampler.resample(None):
            pending += piece.to_ndarray().tobytes()
        send(last=True)
        if sent == 0:
            raise Refused("holds no sound")


if __name__ == "__main__":
    sys.exit(main())
