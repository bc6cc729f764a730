"""Processes that compile: NVRTC compiles one program at a time in a process.

In: kernel sources.  Out: cubins, or the CompileError that compiling here would give; one that says how, where a process ended early.
A worker is gemm/nvrtc_program.py as a script, by an interpreter that imports neither site-packages nor the caller's `__main__`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import IO

from humming_convert.gemm import nvrtc_program
from humming_convert.gemm.nvrtc import CompileError, compiler, cubin_of, program_of
from humming_convert.gemm.source import KernelSource

Compile = Callable[[KernelSource, str], bytes]
"""As nvrtc.compile_cubin."""

SCRIPT = Path(nvrtc_program.__file__)
ADVICE = "advice: compile fewer at once (--jobs, jobs=1 for none but this process), each takes 100 to 150 MB; or give more memory"
LAST_WORDS = 2000  # bytes of what a worker printed


def at_once(work: Callable[[Compile], None], here: Compile, count: int, stop: Callable[[], None]) -> None:
    """Calls work(compile) so often at once: with `here` in this thread, which begins first, and with workers in others.
    stop: after it `work` begins nothing more; it is called where something else than a CompileError ends this."""
    workers = [Worker() for _ in range(count - 1 if can_start() else 0)]
    begun = Event()

    def first(source: KernelSource, arch: str) -> bytes:
        begun.set()
        return here(source, arch)

    def other(worker: Worker) -> None:
        begun.wait()
        try:
            work(worker.cubin)
        finally:
            worker.end()

    with ThreadPoolExecutor(max(1, len(workers)), "compile") as threads:
        try:
            others = [threads.submit(other, worker) for worker in workers]
            work(first)
            for each in others:
                each.result()
        except BaseException:
            stop()
            begun.set()
            for worker in workers:
                worker.kill()
            raise


def can_start() -> bool:
    """Not from a program whose executable is no Python, or whose files are in an archive."""
    return bool(sys.executable) and not hasattr(sys, "frozen") and SCRIPT.is_file()


@dataclass(slots=True)
class Worker:
    """A process that is started when it is first asked, and again after it has ended early. For one thread, apart from `kill`.
    printed: its stderr, a file, since a pipe that nobody reads would stop it."""

    process: subprocess.Popen[bytes] | None = None
    printed: IO[bytes] = field(default_factory=tempfile.TemporaryFile)

    def cubin(self, source: KernelSource, arch: str) -> bytes:
        try:
            stdin, stdout = self._pipes()
            nvrtc_program.send(stdin, program_of(source, arch))
            reply = nvrtc_program.receive(stdout)
        except (OSError, EOFError) as error:
            raise CompileError(f"{source.name} for {arch}: the process that compiles it {self._how(error)}\n{ADVICE}") from None
        return cubin_of(source, arch, reply)

    def kill(self) -> None:
        if (process := self.process) is not None:
            process.kill()

    def end(self) -> None:
        self._stop()
        self.printed.close()

    def _pipes(self) -> tuple[int, int]:
        """Descriptors of its stdin and stdout."""
        if self.process is None:
            found = compiler()
            command = [sys.executable, "-I", "-S", str(SCRIPT), str(found.path), *map(str, found.builtins)]
            self.process = subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.printed)
        assert self.process.stdin is not None and self.process.stdout is not None
        return self.process.stdin.fileno(), self.process.stdout.fileno()

    def _stop(self) -> int | None:
        """The end of its stdin is the end of it. Its status; None where there was none."""
        if self.process is None:
            return None
        process, self.process = self.process, None
        with process:  # closes its pipes and waits
            pass
        return process.returncode

    def _how(self, error: OSError | EOFError) -> str:
        """It ended, in words."""
        status = self._stop()
        if status is None:
            return f"cannot be started ({error})"
        how = f"ended with status {status}" if status >= 0 else f"was ended by signal {-status} ({_signal(-status)})"
        how += ", as processes are when memory runs out" if -status == signal.SIGKILL else ""
        self.printed.seek(max(0, self.printed.seek(0, 2) - LAST_WORDS))
        said = self.printed.read().decode(errors="replace").strip()
        return f"{how}; it printed:\n{said}" if said else how


def _signal(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return "unknown"
