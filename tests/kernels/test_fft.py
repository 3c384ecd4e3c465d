"""The transforms of `cpu_fft` against NumPy's in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from bargein.kernels.cpu_fft import plan_for, rows_of, spectra_of

SIZES = [8, 16, 24, 80, 400, 512, 1200, 2**5 * 3**2 * 5]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 7, 8, 19])
def test_spectra_and_rows(size: int, count: int) -> None:
    draw, step = np.random.default_rng(size + count), size // 4
    signal, window = (draw.standard_normal(n).astype(np.float32) for n in ((count - 1) * step + size, size))
    frames = np.stack([signal[t * step : t * step + size].astype(np.float64) * window for t in range(count)])
    want = np.fft.rfft(frames, axis=1)
    got = spectra_of(signal, step, window, count)
    assert got.dtype == np.complex64 and np.abs(got - want).max() < 1e-6 * np.abs(want).max()
    spectra = (want + 1j * draw.standard_normal(want.shape)).astype(np.complex64)  # also where a real row's have none
    want, got = np.fft.irfft(spectra.astype(np.complex128), size, axis=1), rows_of(spectra, size)
    assert got.dtype == np.float32 and np.abs(got - want).max() < 1e-6 * np.abs(want).max()


def test_a_row_is_the_same_alone_and_beside_others() -> None:
    draw = np.random.default_rng(1)
    signal, window = draw.standard_normal(300 * 20 + 1200).astype(np.float32), np.hanning(1200).astype(np.float32)
    whole = spectra_of(signal, 300, window, 21)
    rows = rows_of(whole, 1200)
    for first, last in ((0, 1), (3, 12), (13, 21)):
        np.testing.assert_array_equal(spectra_of(signal[300 * first :], 300, window, last - first), whole[first:last])
        np.testing.assert_array_equal(rows_of(whole[first:last], 1200), rows[first:last])


def test_what_has_no_plan_is_refused() -> None:
    for size in (0, 4, 12, 8 * 7, 1202):
        with pytest.raises(ValueError, match=f"rows of {size};"):
            plan_for(size)
    with pytest.raises(ValueError, match="of 100 samples"):
        spectra_of(np.zeros(100, np.float32), 40, np.ones(80, np.float32), 2)
    with pytest.raises(ValueError, match="40 bins for rows of 80"):
        rows_of(np.zeros((2, 40), np.complex64), 80)
