"""Will the layers of a folder be read on this machine as they were written?

In: a manifest, and what the machine has, as values.  Out: findings. Nothing here looks at the machine itself; `library.py` does.
Facts: runtimes.md 3.4 (rows 1 to 3); layouts.md 4.1, 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from humming_convert.findings import Finding
from humming_convert.serve.refusals import refusal

# flags that shape bytes; the library derives them anew from a stored configuration
FLAGS = (
    "use_native_dequant",
    "use_ldmatrix_dequant",
    "use_raw_weight",
    "use_flat_weight",
    "use_packed_k_layout",
    "use_fused_e8m0_scale",
    "use_int_weight_scale",
    "use_block_scaled_mma",
    "should_apply_bs_on_c",
)
BY_COMPILER = ("use_native_dequant", "use_ldmatrix_dequant")  # these depend on the CUDA compiler and on cubin patching too


class Machine(Struct, frozen=True, kw_only=True):
    """sm: 10 * major + minor, None if no GPU is seen.  humming: version of humming-kernels, None if it is not installed.
    compiler: of the library, as `13.0`, None if it is not known."""

    sm: int | None
    humming: str | None
    ppu: bool = False
    compiler: str | None = None
    cubin_patch: bool = True


def gpu_findings(manifest: Mapping[str, Any], machine: Machine) -> Iterator[Finding]:
    """Nothing where no GPU is seen: then it is not known."""
    target = manifest["target"]
    if machine.sm is not None and (machine.sm, machine.ppu) != (target["sm"], target["ppu"]):
        here, there = (f"sm{sm}{' (PPU)' if ppu else ''}" for sm, ppu in ((machine.sm, machine.ppu), (target["sm"], target["ppu"])))
        yield refusal(
            "sm-differs", f"packed for {there}, this GPU is {here}", target="ppu" if machine.ppu else f"sm{machine.sm}", file="config.json"
        )


def library_findings(manifest: Mapping[str, Any], machine: Machine) -> Iterator[Finding]:
    humming = manifest["humming"]
    accepted = " or ".join(humming["accepted"])
    if machine.humming is None:
        yield refusal("humming-missing", "humming-kernels is not installed", accepted=humming["version"])
    elif machine.humming not in humming["accepted"]:
        said = f"packed for humming-kernels {humming['version']} (read alike by {accepted}), installed is {machine.humming}"
        yield refusal("humming-version", said, accepted=accepted, installed=machine.humming)


def reading_findings(manifest: Mapping[str, Any], entry: Mapping[str, Any], read: Mapping[str, Any], machine: Machine) -> Iterator[Finding]:
    """read: the fields and flags of the library's configuration made from `entry["config"]`."""
    stored = {**entry["config"], **{flag: entry["flags"][flag] for flag in FLAGS if flag in entry["flags"]}}
    differ = [f"{name}: stored {value}, read {read.get(name)}" for name, value in stored.items() if read.get(name) != value]
    if not differ:
        return
    names = [text.partition(":")[0] for text in differ]
    humming = manifest["humming"]
    if set(names) & set(BY_COMPILER):
        here, there = _compiler(machine.compiler or "unknown", machine.cubin_patch), _compiler(*_stored_compiler(humming))
        said = f"{'; '.join(differ)} (packed for {there}, here {here})"
        yield refusal("compiler-class", said, layer=entry["name"], compiler=machine.compiler or "of this machine")
    else:
        yield refusal("flag-differs", f"humming-kernels {machine.humming}: {'; '.join(differ)}", layer=entry["name"])


def _stored_compiler(humming: Mapping[str, Any]) -> tuple[str, bool]:
    return str(humming["cuda_compiler_version"]), bool(humming["cubin_patch"])


def _compiler(version: str, cubin_patch: bool) -> str:
    return f"CUDA compiler {version} {'with' if cubin_patch else 'without'} cubin patching"


def distinct(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first layer of each configuration and set of flags; the number of experts apart, which shapes nothing else."""
    found: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        found.setdefault(key_of(entry), entry)
    return list(found.values())


def key_of(entry: Mapping[str, Any]) -> str:
    config = {**entry["config"], "num_experts": bool(entry["config"]["num_experts"])}
    return repr((sorted(config.items()), sorted(entry["flags"].items())))
