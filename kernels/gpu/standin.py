"""A stand-in for CuPy on host memory: as strict about mixing with NumPy as CuPy is, and it counts what crosses over.

The interpreter runs the kernels on it, so that whole models run as on a GPU where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def _method(name: str) -> Any:
    """A method of NumPy's arrays, for the device's."""

    def call(self: DeviceArray, *args: Any, **kwargs: Any) -> Any:
        return _wrapped(getattr(self.array, name)(*_unwrapped(args), **kwargs))

    return call


class DeviceArray(np.lib.mixins.NDArrayOperatorsMixin):
    """`cupy.ndarray`, as far as the models use it. `.array` is for the interpreter alone."""

    __slots__ = ("array",)
    __array_priority__ = 100

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    # -- what it is
    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def size(self) -> int:
        return self.array.size

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    @property
    def itemsize(self) -> int:
        return self.array.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        return self.array.strides

    @property
    def flags(self) -> Any:
        return self.array.flags

    @property
    def data(self) -> Any:
        return type("MemoryPointer", (), {"ptr": self.array.ctypes.data})

    @property
    def T(self) -> DeviceArray:
        return DeviceArray(self.array.T)

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[DeviceArray]:
        return (DeviceArray(np.asarray(row)) for row in self.array)

    # -- what NumPy must not do with it
    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _wrapped(getattr(ufunc, method)(*_unwrapped(inputs), **{k: _unwrapped(v) for k, v in kwargs.items()}))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _wrapped(function(*_unwrapped(args), **{k: _unwrapped(v) for k, v in kwargs.items()}))

    def __getitem__(self, key: Any) -> DeviceArray:
        return DeviceArray(np.asarray(self.array[_unwrapped(key)]))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.array[_unwrapped(key)] = _unwrapped(value)

    reshape, astype, copy, transpose = map(_method, ("reshape", "astype", "copy", "transpose"))
    sum, mean, max, min, argmax = map(_method, ("sum", "mean", "max", "min", "argmax"))
    ravel, view, fill, repeat = map(_method, ("ravel", "view", "fill", "repeat"))

    def get(self) -> np.ndarray:
        """A copy on the host."""
        return self.array.copy()


def _unwrapped(value: Any) -> Any:
    """The host arrays inside; a NumPy array among them is what CuPy refuses."""
    if isinstance(value, DeviceArray):
        return value.array
    if isinstance(value, tuple):
        return tuple(_unwrapped(v) for v in value)
    if isinstance(value, list):
        return [_unwrapped(v) for v in value]
    if isinstance(value, np.ndarray):
        raise TypeError("unsupported type <class 'numpy.ndarray'>: an array of the host among the device's")
    return value


def _wrapped(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return DeviceArray(np.asarray(value))
    return tuple(_wrapped(v) for v in value) if isinstance(value, tuple) else value


class StandIn:
    """The module's functions. uploads, downloads: how often something crossed over."""

    ndarray = DeviceArray

    def __init__(self) -> None:
        self.uploads = self.downloads = 0

    def asarray(self, value: Any, dtype: Any = None) -> DeviceArray:
        if isinstance(value, DeviceArray):
            return value if dtype is None else value.astype(dtype)
        self.uploads += 1
        return DeviceArray(np.array(value, dtype))

    array = asarray

    def asnumpy(self, value: Any) -> np.ndarray:
        if not isinstance(value, DeviceArray):
            return np.asarray(value)
        self.downloads += 1
        return value.array.copy()

    def empty(self, shape: Any, dtype: Any = np.float32) -> DeviceArray:
        """Filled with poison: nobody may read what nobody wrote."""
        fill = np.nan if np.dtype(dtype).kind in "fc" else 0x7B
        return DeviceArray(np.full(shape, fill, dtype))

    def zeros(self, shape: Any, dtype: Any = np.float32) -> DeviceArray:
        return DeviceArray(np.zeros(shape, dtype))

    def full(self, shape: Any, value: Any, dtype: Any = np.float32) -> DeviceArray:
        return DeviceArray(np.full(shape, value, dtype))

    def arange(self, *args: Any, **kwargs: Any) -> DeviceArray:
        return DeviceArray(np.arange(*args, **kwargs))

    def ascontiguousarray(self, value: DeviceArray) -> DeviceArray:
        return DeviceArray(np.ascontiguousarray(value.array))
