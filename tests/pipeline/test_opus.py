"""libopus through our own bindings: round trip, concealment, redundancy."""

from __future__ import annotations

import numpy as np
import pytest
import soxr

from bargein.client.audio import read_wav
from bargein.pipeline.transports import opus

from ..e2e.conftest import DATA


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    return read_wav(DATA / "questions" / "capital.wav")


def packets(speech: np.ndarray) -> list[bytes]:
    coder = opus.Encoder()
    return [coder.encode(speech[i : i + opus.FRAME].tobytes()) for i in range(0, len(speech), opus.FRAME)]


def likeness(a: np.ndarray, b: np.ndarray) -> float:
    """The best correlation over a shift of up to 20 ms."""
    n = min(len(a), len(b)) - 320
    return max(float(np.corrcoef(a[:n], b[k : k + n])[0, 1]) for k in range(0, 320, 2))


def test_speech_comes_back_as_it_was(speech: np.ndarray) -> None:
    want = soxr.resample(speech.astype(np.float32) / 32768, 24000, 16000)
    coder = opus.Decoder()
    got = np.concatenate([coder.decode(p) for p in packets(speech)])
    assert len(got) == -(-len(speech) // opus.FRAME) * 320
    assert likeness(want, got) > 0.95


def test_a_lost_packet_is_better_recovered_than_concealed(speech: np.ndarray) -> None:
    coded = packets(speech)
    whole = opus.Decoder()
    want = [whole.decode(p) for p in coded]
    error = {"recover": 0.0, "conceal": 0.0}
    for how in error:
        coder = opus.Decoder()
        for n, p in enumerate(coded):
            if n % 10 == 5 and n + 1 < len(coded):
                got = coder.recover(coded[n + 1], 960) if how == "recover" else coder.conceal(960)
                assert len(got) == 320
                error[how] += float(np.sum((got - want[n]) ** 2))
            else:
                coder.decode(p)
    assert error["recover"] < 0.7 * error["conceal"]


def test_what_is_not_a_packet_is_refused() -> None:
    assert opus.packet_samples(b"") == 0
    coder = opus.Decoder()
    with pytest.raises(opus.OpusError):
        coder.decode(b"\xff\xff\xff")
    assert opus.packet_samples(packets(np.zeros(480, np.int16))[0]) == 960
