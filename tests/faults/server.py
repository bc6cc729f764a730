"""A warm process that runs the command line in a forked child for each trial, with a fault armed. One JSON line in, one out.

Run by `faults.Server` with the shim preloaded; start-up is paid once, so that a sweep over every call takes seconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import tempfile
from typing import Any

from humming_convert import api
from humming_convert.cli.guard import guarded
from humming_convert.cli.main import application
from humming_convert.engine import programs
from humming_convert.proof import stream

KINDS = {"write": 1, "read": 2, "sync": 4, "name": 8}
ACTIONS = {"fail": 1, "short": 2, "kill-before": 3, "kill-after": 4}


def warm(model: str, out: str, lists: bool = False) -> None:
    """Imports everything that the command line and a conversion import, so that no child does. lists: small layers too go through compiled passes, in lists of several windows."""
    if lists:
        stream.SMALL, programs.WINDOW, programs.LIST = 0, 1 << 8, 1 << 14
    application()
    api.convert(api.plan(model, target="sm90", act="bf16"), out=out)
    api.verify(out)


def child(trial: dict[str, Any], report: int, said: int) -> None:
    """Runs one command line; never returns."""
    os.dup2(said, 1)
    os.dup2(said, 2)
    if "file_limit" in trial:
        resource.setrlimit(resource.RLIMIT_FSIZE, (trial["file_limit"], resource.RLIM_INFINITY))
    shim = ctypes.CDLL(None)
    if fault := trial.get("fault"):
        kinds = sum(KINDS[k] for k in fault["kinds"])
        shim.fault_arm(
            fault["folder"].encode(), kinds, fault["at"], ACTIONS[fault["action"]], fault.get("errno", 0), int(fault["for_good"])
        )
    code = guarded(application(trial["arguments"][:1]), trial["arguments"])  # one verb, as `run` has it
    if fault:
        calls = shim.fault_count()
        shim.fault_arm(b"", 0, 0, 0, 0, 0)
        os.write(report, str(calls).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve() -> None:
    for text in sys.stdin:
        trial = json.loads(text)
        if "warm" in trial:
            warm(*trial["warm"])
            print(json.dumps({}), flush=True)
            continue
        report, write = os.pipe()
        with tempfile.TemporaryFile() as said:
            pid = os.fork()
            if pid == 0:
                try:
                    child(trial, write, said.fileno())
                finally:
                    os._exit(99)
            os.close(write)
            calls = os.read(report, 32)
            os.close(report)
            _, status = os.waitpid(pid, 0)
            said.seek(0)
            words = said.read().decode(errors="replace")
        print(json.dumps({"code": os.waitstatus_to_exitcode(status), "calls": int(calls or 0), "said": words}), flush=True)


if __name__ == "__main__":
    serve()
