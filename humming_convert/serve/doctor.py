"""`doctor OUT`: will this folder load on this machine?

Out: rows of (what, found or not, details, advice), by the same conditions as the plugin and the plain loader. Nothing is changed, nothing is run.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from humming_convert.findings import Finding, Refused, counted
from humming_convert.gemm.doctor import Row
from humming_convert.manifest.inside import FETCH, file_inside, no_file
from humming_convert.manifest.tuning import is_tuning
from humming_convert.serve import library
from humming_convert.serve.folder import PackedFolder, RankLayers
from humming_convert.serve.machine import Machine, distinct, gpu_findings, library_findings
from humming_convert.serve.plugin.tested import TESTED, installed_vllm, version_finding

# files of single ranks, which have rows of their own; kernels
NOT_NEEDED = ("model-packed-", "humming_manifest-", "humming_kernels-")
GROUP, PLUGIN, ALLOWED = "vllm.general_plugins", "humming_packed", "VLLM_PLUGINS"


def rows(folder: Path) -> list[Row]:
    """Refused if it is no packed folder."""
    packed = PackedFolder.open(folder)
    machine = here()
    return [
        _folder(packed),
        _common_files(packed),
        *(_files(packed.rank(*key), number) for number, key in enumerate(packed.rank_files)),
        _gpu(packed, machine),
        _library(packed, machine),
        _reading(packed, machine),
        *_tunings(folder),
        *_vllm(packed),
    ]


def here() -> Machine:
    """What can be known without running anything. The GPU by torch or CuPy, whichever is installed."""
    return Machine(sm=_sm(), humming=library.installed_version(), cubin_patch=library.cubin_patch())


def _sm() -> int | None:
    try:
        import torch

        if torch.cuda.is_available():
            major, minor = torch.cuda.get_device_capability()
            return 10 * int(major) + int(minor)
    except ImportError:
        pass
    from humming_convert.gemm.device import NoDevice, open_device

    try:
        return open_device().sm
    except NoDevice:
        return None


def _tunings(folder: Path) -> Iterator[Row]:
    """Which tunings the core would take here, and why; nothing of a folder that was never tuned."""
    if not any(is_tuning(p.name) for p in folder.iterdir()):
        return
    from humming_convert.gemm.device import NoDevice, open_device
    from humming_convert.gemm.tunings import tunings_of

    try:
        device = open_device()
    except NoDevice:
        yield Row("tunings", None, "no GPU is seen through CuPy")
        return
    yield Row("tunings", True, tunings_of(folder, device.name, device.sm).words)


def _row(what: str, found: str, findings: Iterable[Finding]) -> Row:
    bad = list(findings)
    if not bad:
        return Row(what, True, found)
    return Row(what, False, "; ".join(f"{x.layer}: {x.message}" if x.layer else x.message for x in bad), bad[0].advice)


def _folder(packed: PackedFolder) -> Row:
    target, humming = packed.common["target"], packed.common["humming"]
    ranks = f"{packed.tp_size} tensor-parallel" + (f", {packed.ep_size} expert" if packed.ep_size > 1 else "")
    made = f"{target['name']}, {packed.common['act']}, {packed.common['dtype']}, humming-kernels {humming['version']}"
    return Row("folder", True, f"{made}; ranks: {ranks}")


def _common_files(packed: PackedFolder) -> Row:
    """What every rank needs, by name and size: config, unquantized weights, tokenizer. Kernels and tunings are made again where they are missing."""
    findings: list[Finding] = []
    wanted = [f for f in packed.common["files"] if not f["name"].startswith(NOT_NEEDED) and not is_tuning(f["name"])]
    for entry in wanted:
        try:
            path = file_inside(packed.path, entry["name"])
        except Refused as refused:
            findings += refused.findings
            continue
        size = path.stat().st_size if path.is_file() else None
        if size != entry["bytes"]:
            said = no_file(path) if size is None else f"has {size:,} bytes, the manifest says {entry['bytes']:,}"
            findings.append(Finding(severity="error", code="file-missing", message=f"{entry['name']} {said}", advice=FETCH))
    return _row("files, common", f"{counted(len(wanted), 'file')} of the size that the manifest says", findings[:3])


def _files(rank: RankLayers, number: int) -> Row:
    """A machine that serves some ranks alone may lack the files of the others: the row says whose they are."""
    findings: list[Finding] = []
    for entry in rank.layers:
        try:
            rank.tensors.views(entry)
        except Refused as refused:
            findings += [f for f in refused.findings if f not in findings]
    tensors = sum(len(entry["tensors"]) for entry in rank.layers)
    return _row(
        f"files, rank {number}", f"{counted(len(rank.layers), 'layer')}, {counted(tensors, 'tensor')} where the manifest says", findings[:3]
    )


def _gpu(packed: PackedFolder, machine: Machine) -> Row:
    if machine.sm is None:
        looked = [name for module, name in (("torch", "torch"), ("cupy", "CuPy")) if find_spec(module) is not None]
        seen = f"none is seen by {' or '.join(looked)}" if looked else "cannot be looked for: neither torch nor CuPy is installed"
        return Row(
            "gpu",
            False,
            seen,
            "run this on the serving machine, in the environment that serves; `humming-convert doctor` says what it lacks",
        )
    return _row("gpu", f"sm{machine.sm}, as packed", gpu_findings(packed.common, machine))


def _library(packed: PackedFolder, machine: Machine) -> Row:
    if machine.humming is None and installed_vllm() is None:
        (missing,) = library_findings(packed.common, machine)
        return Row("humming-kernels", None, "not installed; vLLM and hc.load(backend='humming') need it", missing.advice)
    return _row("humming-kernels", f"{machine.humming}, accepted", library_findings(packed.common, machine))


def _reading(packed: PackedFolder, machine: Machine) -> Row:
    """The library itself reads every configuration, if it may be asked: it looks at the GPU for that."""
    target = packed.common["target"]
    if machine.humming is None or machine.sm != target["sm"]:
        return Row("reading", None, "the library can be asked on its GPU alone")
    if machine.humming not in packed.common["humming"]["accepted"]:
        return Row("reading", None, "not asked: the version is not accepted")
    known = Machine(sm=machine.sm, humming=machine.humming, ppu=machine.ppu, compiler=library.compiler(), cubin_patch=machine.cubin_patch)
    findings: list[Finding] = []
    asked = 0
    for key in packed.rank_files:
        rank = packed.rank(*key)
        for entry in distinct(rank.layers):
            asked += 1
            findings += library.differences(rank.manifest, entry, known)
    stored = packed.common["humming"]["cuda_compiler_version"]
    said = f"{counted(asked, 'configuration')} read as written (CUDA compiler {known.compiler}, packed for {stored})"
    return _row("reading", said, findings[:3])


def allowed_plugins() -> list[str] | None:
    """Those that VLLM_PLUGINS lets vLLM load, letter by letter as vLLM 0.33 reads it (vllm/envs.py); None: all. Set and empty it allows none."""
    said = os.environ.get(ALLOWED)
    return None if said is None else said.split(",")


def _plugin() -> Row:
    """Found by its entry point, and allowed."""
    found = [e for e in entry_points(group=GROUP) if e.name == PLUGIN]
    if not found:
        return Row("plugin", False, "vLLM will not find it: no entry point", "install humming-convert into the environment of vLLM")
    allowed = allowed_plugins()
    if allowed is not None and PLUGIN not in allowed:
        said = os.environ[ALLOWED]
        names = [name for name in allowed if name.strip() and name.strip() != PLUGIN]  # vLLM takes spaces for part of a name
        mended = shlex.quote(",".join([*names, PLUGIN]))
        rest = f", or unset {ALLOWED}: then vLLM loads every plugin that is installed"
        return Row("plugin", False, f"{ALLOWED}={shlex.quote(said)} does not name {PLUGIN}", f"export {ALLOWED}={mended}{rest}")
    named = f"{ALLOWED} names it" if allowed is not None else f"{ALLOWED} is not set"
    return Row("plugin", True, f"{found[0].value}; {named}")


def _vllm(packed: PackedFolder) -> Iterator[Row]:
    installed = installed_vllm()
    if installed is None:
        yield Row("vllm", None, "not installed; the plain loader needs none", f"python -m pip install 'vllm=={TESTED[-1]}.*'")
        return
    finding = version_finding(installed)
    yield _row("vllm", f"{installed}, tested", [] if finding is None else [finding])
    yield _plugin()
    ranks = f"--tensor-parallel-size {packed.tp_size}" + (" --enable-expert-parallel" if packed.ep_size > 1 else "")
    yield Row("start", True, f"vllm serve {packed.path} {ranks} --dtype {packed.common['dtype']}")
