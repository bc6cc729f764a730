"""One program through NVRTC's C interface; run as a script, a process that compiles programs for another.

In: a loaded library and a program as fields of bytes.  Out: what the compiler gives: a status, and a cubin or a log.
As a script (gemm/workers.py): paths of NVRTC and its builtins as arguments, programs on stdin, replies on stdout; the end of stdin ends it, and so
does the end of the process that started it. It is started for each set of kernels, so that nothing but a few modules of Python's own is imported
here: an interpreter that imports this package, or its caller's `__main__`, takes longer to start than a small kernel to compile.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

PR_SET_PDEATHSIG, SIGKILL = 1, 9  # `signal` takes longer to import than all else here
COMPILED, NO_PROGRAM, FAILED = b"compiled", b"no program", b"failed"


def load(path: str, builtins: tuple[str, ...]) -> ctypes.CDLL:
    """The builtins library has to be loaded first."""
    for name in builtins:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(path)


def program(entry: str, headers: tuple[tuple[str, str], ...], options: tuple[str, ...]) -> list[bytes]:
    """As fields: how many options, they, the entry, then name and text of each header."""
    texts = (str(len(options)), *options, entry, *(text for header in headers for text in header))
    return [text.encode() for text in texts]


def compiled(nvrtc: ctypes.CDLL, fields: list[bytes]) -> list[bytes]:
    """fields: of `program`.  Out: COMPILED, NO_PROGRAM or FAILED; NVRTC's status; the cubin or the log."""
    count = int(fields[0])
    options, entry, headers = fields[1 : 1 + count], fields[1 + count], fields[2 + count :]
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()
    names, texts = _array(headers[0::2]), _array(headers[1::2])
    status = nvrtc.nvrtcCreateProgram(ctypes.byref(handle), entry, b"entry.cu", len(names), texts, names)
    if status:
        return [NO_PROGRAM, b"%d" % status, b""]
    try:
        failed = nvrtc.nvrtcCompileProgram(handle, count, _array(options))
        get_size, get = ("nvrtcGetProgramLogSize", "nvrtcGetProgramLog") if failed else ("nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        getattr(nvrtc, get_size)(handle, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, get)(handle, data)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(handle))
    return [FAILED if failed else COMPILED, b"%d" % failed, data.value if failed else data.raw]


def _array(texts: list[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*texts)


def send(descriptor: int, fields: list[bytes]) -> None:
    """How many fields, their lengths, the fields. OSError where nobody reads."""
    head = struct.pack(f"<I{len(fields)}Q", len(fields), *map(len, fields))
    rest = memoryview(b"".join((head, *fields)))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def receive(descriptor: int) -> list[bytes]:
    """What `send` sent. EOFError where the other side has ended."""
    (count,) = struct.unpack("<I", _exactly(descriptor, 4))
    return [_exactly(descriptor, size) for size in struct.unpack(f"<{count}Q", _exactly(descriptor, 8 * count))]


def _exactly(descriptor: int, size: int) -> bytes:
    out = bytearray()
    while len(out) < size:
        piece = os.read(descriptor, size - len(out))
        if not piece:
            raise EOFError(f"{len(out)} of {size} bytes")
        out += piece
    return bytes(out)


def main(path: str, *builtins: str) -> None:
    replies = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no reply
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)  # in the middle of a program nobody looks at stdin
    nvrtc = load(path, builtins)
    while True:
        try:
            fields = receive(0)
        except EOFError:
            return
        send(replies, compiled(nvrtc, fields))


if __name__ == "__main__":
    main(*sys.argv[1:])
