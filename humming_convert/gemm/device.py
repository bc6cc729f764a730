"""The GPU, through CuPy: memory, loading of cubins, launches. The only file that imports CuPy.

In: numpy arrays and cubins.  Out: the same from the device.  NoDevice says what is missing and the command that mends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humming_convert.gemm.cache import KernelCache
from humming_convert.gemm.nvrtc import architecture
from humming_convert.gemm.source import KernelSource
from humming_convert.gemm.tensor_map import rows_map

CUPY = "python -m pip install 'cupy-cuda13x>=13.6' (CUDA 12: cupy-cuda12x), or humming-convert[cuda13]"
MIN_SM = 75
COPIED = 16  # bytes of an asynchronous copy
FREELY_SHARED = 48 * 1024  # more bytes of shared memory have to be asked for


class NoDevice(Exception):
    """There is no GPU to run on, or nothing to reach it with; `advice`: the command that mends it."""

    def __init__(self, message: str, advice: str) -> None:
        self.advice = advice
        super().__init__(f"{message}; {advice}")


@dataclass(slots=True)
class Queue:
    """A CUDA stream: copies and kernels one after the other, while the thread that asked for them goes on. Addresses are whole numbers."""

    device: Device
    stream: Any

    def send(self, to: int, array: NDArray[Any]) -> None:
        """To the device. The array, contiguous, must stay as it is until `wait`."""
        self._copy(to, address(array), array.nbytes, self.device.cupy.cuda.runtime.memcpyHostToDevice)

    def bring(self, array: NDArray[Any], at: int) -> None:
        """From the device; there after `wait`."""
        self._copy(address(array), at, array.nbytes, self.device.cupy.cuda.runtime.memcpyDeviceToHost)

    def _copy(self, to: int, at: int, nbytes: int, kind: int) -> None:
        if nbytes:
            self.device.cupy.cuda.runtime.memcpyAsync(to, at, nbytes, kind, self.stream.ptr)

    def clear(self, at: int, nbytes: int) -> None:
        self.device.cupy.cuda.runtime.memsetAsync(at, 0, nbytes, self.stream.ptr)

    def launch(self, source: KernelSource, grid: tuple[int, ...], threads: int, arguments: Sequence[Any]) -> None:
        with self.stream:
            self.device.launch(source, grid, threads, arguments)

    def wait(self) -> None:
        self.stream.synchronize()


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of the device. It is free again when nothing holds `memory`."""

    memory: Any
    address: int
    nbytes: int


@dataclass(slots=True)
class Device:
    """One GPU. `sm`: 10 * major + minor.  index: its number; None: whichever is current in a thread."""

    cupy: Any
    sm: int
    name: str
    cache: KernelCache
    functions: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    index: int | None = None
    _loading: threading.Lock = field(default_factory=threading.Lock)
    _sums: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    _rows: dict[int, Any] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)

    def use(self) -> None:
        """Makes it the device of this thread."""
        if self.index is not None:
            self.cupy.cuda.Device(self.index).use()

    @property
    def multiprocessors(self) -> int:
        return int(self.properties["multiProcessorCount"])

    @property
    def cache_bytes(self) -> int:
        """Of the L2 cache."""
        return int(self.properties["l2CacheSize"])

    @property
    def shared_most(self) -> int:
        """Bytes of shared memory that a block may have."""
        return int(self.properties["sharedMemPerBlockOptin"])

    @property
    def properties(self) -> Any:
        runtime = self.cupy.cuda.runtime
        return runtime.getDeviceProperties(runtime.getDevice() if self.index is None else self.index)

    def queue(self) -> Queue:
        return Queue(self, self.cupy.cuda.Stream(non_blocking=True))

    def room(self, nbytes: int) -> Room:
        memory = self.cupy.cuda.alloc(nbytes)
        return Room(memory, int(memory.ptr), nbytes)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked memory of this machine, which copies need no second buffer for."""
        out: NDArray[np.uint8] = np.frombuffer(self.cupy.cuda.alloc_pinned_memory(max(nbytes, 1)), np.uint8)[:nbytes]
        return out

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What the driver and its memory raise."""
        cuda = self.cupy.cuda
        return cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError, cuda.memory.OutOfMemoryError

    def put(self, array: NDArray[Any]) -> Any:
        """To the device; types that CuPy has no name for go as bits."""
        x = np.ascontiguousarray(array)
        return self.cupy.asarray(x if x.dtype.kind in "biuf" and x.dtype.itemsize != 0 and x.dtype.isbuiltin == 1 else bits(x))

    def contiguous(self, x: Any) -> Any:
        """Rows as kernels read them: side by side, from a multiple of 16 bytes on. A copy only where x is neither."""
        out = self.cupy.ascontiguousarray(x)
        return out if out.data.ptr % COPIED == 0 else out.copy()

    def from_dlpack(self, x: Any) -> Any:
        """An array over another library's memory on this device."""
        return self.cupy.from_dlpack(x)

    def counts(self, counts: Any, experts: int) -> Any:
        """Counts of rows as the kernels read them: int32 [experts] on the device, wherever they were."""
        out = self.cupy.ascontiguousarray(self.cupy.asarray(counts), dtype=np.int32)
        assert out.shape == (experts,), (out.shape, experts)
        return out

    def get(self, array: Any) -> NDArray[Any]:
        return np.asarray(self.cupy.asnumpy(array))

    def filled(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Memory full of ones in every bit: NaN as a float, so that what a kernel does not write is seen."""
        out = self.cupy.empty(shape, dtype)
        self.fill(out, 0xFF)
        return out

    def fill(self, array: Any, byte: int) -> None:
        """Every byte of an array; no kernel is compiled for it."""
        array.data.memset(byte, array.nbytes)

    def rows_map(self, x: Any, box_rows: int) -> Any:
        """Rows [m, k] on the device as copies by the hardware address them, in boxes of so many rows (tensor_map.py)."""
        return rows_map(int(x.data.ptr), x.shape[0], x.shape[1], x.itemsize, box_rows)

    def part_sums(self, tiles: int, each: int) -> tuple[Any, Any]:
        """Room for the sums of blocks that split K, `each` bytes for each of so many tiles, and a count for each: 0, as kernels leave it.
        A stream has its own; larger room replaces it, and graphs that were made with the smaller keep that."""
        stream = self.cupy.cuda.get_current_stream().ptr
        arrived, sums = self._sums.get(stream, (None, None))
        if arrived is None or arrived.size < tiles or sums.size < tiles * each:
            arrived = self.cupy.zeros(max(tiles, 4096), np.int32)
            sums = self.cupy.empty(max(tiles * each, 1 << 20), np.uint8)
            self._sums[stream] = arrived, sums
            self._kept.append((arrived, sums))
        return arrived, sums

    def workspace(self, shape: tuple[int, ...], like: Any) -> Any:
        """Room for gathered rows, of the type of `like`; what is in it holds until the next launch that asks for it. A stream has its own."""
        stream, nbytes = self.cupy.cuda.get_current_stream().ptr, int(np.prod(shape)) * like.itemsize
        room = self._rows.get(stream)
        if room is None or room.size < nbytes:
            room = self._rows[stream] = self.cupy.empty(nbytes, np.uint8)
            self._kept.append(room)
        return room[:nbytes].view(like.dtype).reshape(shape)

    def function(self, source: KernelSource, shared: int = 0) -> Any:
        """The kernel, loaded; compiled if no cache has it. shared: bytes of shared memory that launches ask for."""
        key = (source.name, source.generated, shared)
        with self._loading:
            if key in self.functions:
                return self.functions[key]
            module = self.cupy.RawModule(path=str(self.cache.get(source, architecture(self.sm))))
            function = module.get_function(source.name)
            if shared > FREELY_SHARED:
                function.max_dynamic_shared_size_bytes = shared
            self.functions[key] = function
            return self.functions[key]

    def launch(self, source: KernelSource, grid: tuple[int, ...], threads: int, arguments: Sequence[Any], shared: int = 0) -> None:
        """None among the arguments is a null pointer; whole numbers are 32-bit. shared: bytes of shared memory beyond a kernel's own."""
        self.bound(source, grid, threads, arguments, shared)()

    def bound(
        self, source: KernelSource, grid: tuple[int, ...], threads: int, arguments: Sequence[Any], shared: int = 0
    ) -> Callable[[], None]:
        """The launch, to be made as often as one likes, on the stream that is current then."""
        passed = tuple(np.uintp(0) if a is None else np.int32(a) if isinstance(a, int) else a for a in arguments)
        function = self.function(source, shared)
        return lambda: function(grid, (threads,), passed, shared_mem=shared)


def bits(x: NDArray[Any]) -> NDArray[Any]:
    """An array as unsigned integers of its width."""
    return x.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[x.dtype.itemsize])


def address(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous, array.strides
    return int(array.__array_interface__["data"][0])


def open_device(cache: KernelCache | None = None, shipped: dict[str, Path] | None = None, index: int | None = None) -> Device:
    """The current GPU, or the one of that number. NoDevice if there is none that can run the kernels."""
    try:
        import cupy
    except ImportError as error:
        raise NoDevice(f"CuPy is not installed ({error})", CUPY) from None
    if not cupy.cuda.is_available():
        raise NoDevice("CuPy sees no GPU", "install an NVIDIA driver, or run this on the GPU machine; converting needs none")
    count = int(cupy.cuda.runtime.getDeviceCount())
    if index is not None and index >= count:
        raise NoDevice(f"there is no GPU {index}, {count} are seen", "--device cuda takes the current one; nvidia-smi -L names them all")
    index = int(cupy.cuda.Device().id) if index is None else index
    properties = cupy.cuda.runtime.getDeviceProperties(index)
    sm = int(properties["major"]) * 10 + int(properties["minor"])
    if sm < MIN_SM:
        raise NoDevice(f"sm_{sm} has no kernels", f"a GPU of sm_{MIN_SM} or newer is needed")
    return Device(cupy, sm, properties["name"].decode(), cache or KernelCache(shipped=shipped or {}), index=index)
