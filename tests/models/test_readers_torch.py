"""An old PyTorch checkpoint is read as tensors, and whatever else its pickles ask for is refused."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from bargein.models import ge2e, store
from bargein.models.errors import WeightsError
from bargein.models.readers_torch import read_torch

MAGIC = 0x1950A86A20F9469CFC6C


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/bargein-was-here",)


def test_a_checkpoint_that_would_run_something_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.pt"
    path.write_bytes(b"".join(pickle.dumps(x, 2) for x in (MAGIC, 1001, {}, {"model_state": _Evil()}, [])))
    with pytest.raises(WeightsError, match="is not a tensor"):
        read_torch(path, "model_state")
    assert not Path("/tmp/bargein-was-here").exists()


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", pickle.dumps(MAGIC, 2), pickle.dumps(1, 2), struct.pack("<q", 7) * 9])
def test_a_damaged_file_says_what_to_do(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "damaged.pt"
    path.write_bytes(data)
    with pytest.raises(WeightsError, match="bargein models pull"):
        read_torch(path, "model_state")


def test_the_voice_encoder_does_not_hang_on_how_much_it_reads_at_once() -> None:
    model = ge2e.load(store.path("ge2e"))
    x = np.random.default_rng(0).normal(0, 1, (3, ge2e.FRAMES, ge2e.MELS)).astype(np.float32) ** 2
    together = ge2e.embed(model, x)
    alone = np.concatenate([ge2e.embed(model, x[i : i + 1]) for i in range(3)])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
