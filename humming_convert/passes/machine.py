"""Machine code: compile a kernel once a machine, keep it as an object file, load it in every later process.

In: the text of an LLVM module with one function `kernel(int64 *) -> int64`.  Out: a callable that runs without the interpreter's lock.
The cache holds what this processor, this LLVM and these sources make; an entry is written only after its kernel passed its check. LLVM is
imported where something is compiled, or where an object cannot be loaded without it (`flat`).
Facts: architecture.md 5; docs/decisions/050 (why not through numba), 083.
"""

from __future__ import annotations

import ctypes
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128, xxh3_128_digest

from humming_convert.passes.aux_values import address
from humming_convert.passes.flat import Flat, flattened, placed

ENVIRONMENT = "HUMMING_CONVERT_CACHE"
DIGEST_BYTES = 16
SHAPING = ("flat", "kernels", "machine", "maps", "orders", "positions", "route", "vector", "written")  # modules that shape a kernel's code

# names of /proc/cpuinfo, of x86-64 and aarch64: neither clocks nor numbers of cores, which change
PROCESSOR = frozenset(
    (b"vendor_id", b"cpu family", b"model", b"model name", b"stepping", b"flags")
    + (b"Features", b"CPU implementer", b"CPU architecture", b"CPU variant", b"CPU part", b"CPU revision")
)

Check = Callable[["Kernel"], bool]


class Kernel:
    """A compiled function; holds on to what owns its code. Any number of threads may call it."""

    def __init__(self, address: int, owner: object) -> None:
        self._owner = owner
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, use_errno=True)
        self.address = address
        self._function = kind(self.address)

    def __call__(self, parameters: NDArray[np.int64]) -> int:
        """parameters: C-contiguous int64; the caller keeps alive what its addresses point at."""
        return int(self._function(address(parameters)))


class KernelCheckFailed(RuntimeError):
    """A freshly compiled kernel did not reproduce known values: never used, never cached."""


# ---- where objects are kept


def _private(folder: Path) -> bool:
    """Only we can write there: its files are run."""
    try:
        info = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022 and os.access(folder, os.W_OK | os.X_OK)


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """The first usable of: HUMMING_CONVERT_CACHE, the XDG cache folder, a private folder for temporary files. None: compile each time.

    A folder that others could write to is passed over, since machine code is loaded from it.
    """
    given = environ.get(ENVIRONMENT)
    home = environ.get("XDG_CACHE_HOME") or (str(Path(environ["HOME"]) / ".cache") if environ.get("HOME") else None)
    places = [Path(given) / "passes"] if given else []
    places += [Path(home) / "humming-convert" / "passes"] if home else []
    places.append(Path(tempfile.gettempdir()) / f"humming-convert-{os.geteuid()}")
    for folder in places:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if _private(folder):
            return folder
    return None


def _read_object(path: Path) -> bytes | None:
    """The entry, if it is whole: a digest of the rest comes first."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    head, code = raw[:DIGEST_BYTES], raw[DIGEST_BYTES:]
    return code if xxh3_128_digest(code) == head else None


def _write_object(path: Path, code: bytes) -> None:
    """Whole or not at all, whoever else writes the same name. A full or vanished disk only costs the next process a compilation."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
            file.write(xxh3_128_digest(code) + code)
        os.replace(file.name, path)
    except OSError:
        return


# ---- compile and load


@lru_cache(maxsize=1)
def _host() -> tuple[Any, str, str, str]:
    """(llvmlite.binding, triple, processor, features)."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm, llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> bytes:
    """What the system says of the first processor and what it can do; LLVM's words where it says nothing."""
    try:
        with open(cpuinfo, "rb") as file:
            first = file.read(1 << 14).split(b"\n\n")[0]
    except OSError:
        first = b""
    lines = [x for x in first.split(b"\n") if x.partition(b":")[0].strip() in PROCESSOR]
    return b"\n".join(lines) if any(x.startswith((b"flags", b"Features")) for x in lines) else repr(_host()[1:]).encode()


def _compiler() -> bytes:
    """llvmlite's version as its own file has it, so that it need not be imported; by its word where there is no such file."""
    found = find_spec("llvmlite")
    try:
        return (Path(str(found.origin)).with_name("_version.py") if found is not None else Path()).read_bytes()
    except OSError:
        return repr(_host()[0].llvm_version_info).encode()


@lru_cache(maxsize=1)
def _made_of() -> bytes:
    """Digest of what shapes the code besides its key: these sources, the compiler and the processor."""
    digest = xxh3_128(os.uname().machine.encode() + _processor() + _compiler())
    for name in SHAPING:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.digest()


def _target_machine(module_cpu: str | None = None) -> Any:
    llvm, triple, cpu, features = _host()
    target = llvm.Target.from_triple(triple)
    if module_cpu is not None:
        cpu, features = module_cpu, ""
    return target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True)


def compiled(text: str, cpu: str | None = None) -> bytes:
    """Object file of a module. cpu: another processor than this one, by LLVM's name (it must be able to run here, to be loaded)."""
    llvm = _host()[0]
    machine = _target_machine(cpu)
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False  # the kernels are vectors already
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


def loaded(code: bytes) -> Kernel:
    """The kernel of an object file, by LLVM."""
    llvm, triple, *_ = _host()
    module = llvm.parse_assembly("")
    module.triple = triple
    engine = llvm.create_mcjit_compiler(module, _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Kernel(int(engine.get_function_address("kernel")), engine)


# ---- entries of the cache: the byte at which flat code begins to run, then the code; OBJECT, then an object file
OBJECT = (1 << 64) - 1
ENTRY_BYTES = 8


def entry_of(code: bytes) -> bytes:
    """A compiled object as it is kept."""
    flat = flattened(code, "kernel")
    start, rest = (OBJECT, code) if flat is None else (flat.entry, flat.code)
    return start.to_bytes(ENTRY_BYTES, "little") + rest


def kernel_of(entry: bytes) -> Kernel | None:
    """None where flat code cannot be run, and is to be compiled anew."""
    start, rest = int.from_bytes(entry[:ENTRY_BYTES], "little"), entry[ENTRY_BYTES:]
    if start == OBJECT:
        return loaded(rest)
    found = placed(Flat(rest, start))
    return None if found is None else Kernel(*found)


class Kernels:
    """The kernels of a process. `key` names what is compiled; `text` is asked for only if nothing is cached."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._held: dict[str, Kernel] = {}
        self._lock = threading.RLock()

    def get(self, key: str, text: Callable[[], str], check: Check) -> Kernel:
        """A kernel that has passed `check`: now, or when its cache entry was made."""
        kernel = self._held.get(key)
        if kernel is not None:
            return kernel
        with self._lock:
            if key not in self._held:
                self._held[key] = self._from_cache(key) or self._new(key, text, check)
            return self._held[key]

    def _path(self, key: str) -> Path | None:
        name = xxh3_128(_made_of() + key.encode()).hexdigest()
        return None if self._folder is None else self._folder / f"{name}.o"

    def _from_cache(self, key: str) -> Kernel | None:
        path = self._path(key)
        entry = None if path is None else _read_object(path)
        return None if entry is None else kernel_of(entry)

    def _new(self, key: str, text: Callable[[], str], check: Check) -> Kernel:
        code = compiled(text())
        entry = entry_of(code)
        kernel = kernel_of(entry) or loaded(code)
        if not check(kernel):
            raise KernelCheckFailed(f"a compiled pass does not give the known values on this machine: {key}")
        path = self._path(key)
        if path is not None:
            _write_object(path, entry)
        return kernel


@lru_cache(maxsize=1)
def kernels() -> Kernels:
    """This process's kernels, kept where the environment says."""
    return Kernels(cache_folder(os.environ))
