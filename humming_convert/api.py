"""The Python API: inspect, plan, convert, verify. The command line calls nothing else.

Facts: architecture.md 9.1, 9.2, 9.8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from humming_convert.findings import Finding, Findings, Refused

if TYPE_CHECKING:
    from humming_convert.checkpoint.folder import Checkpoint
    from humming_convert.engine.how import How
    from humming_convert.engine.progress import Progress
    from humming_convert.engine.run import Result
    from humming_convert.gemm.doctor import Row
    from humming_convert.hub.names import HubName
    from humming_convert.hub.push import Pushed
    from humming_convert.plan.inspect import Inspection
    from humming_convert.plan.types import Plan, Request
    from humming_convert.proof.recheck import Recheck
    from humming_convert.proof.stream import Packers
    from humming_convert.proof.verify import Verification
    from humming_convert.serve.load import CheckedLayers

__all__ = [
    "Finding",
    "Refused",
    "UsageError",
    "cache_key",
    "convert",
    "convert_all",
    "default_name",
    "doctor",
    "inspect",
    "merge",
    "open_model",
    "plan",
    "plans",
    "push",
    "recheck",
    "verify",
]

SIXTEEN_BIT = {"bf16": "BF16", "fp16": "F16"}


class UsageError(Exception):
    """The request itself makes no sense: an unknown target, options that contradict each other, a path that does not exist. Exit code 2."""


def named(model: str | Path) -> Path | HubName:
    """A folder, or a Hub id where there is no folder of this name. UsageError if it can be neither."""
    from humming_convert.hub.names import hub_name

    if model == "":
        raise UsageError("MODEL is empty; give a folder, or a Hub id such as org/name")
    folder = Path(model)
    if folder.exists():
        return folder
    name = hub_name(model) if isinstance(model, str) else None
    if name is None:
        raise UsageError(f"{model}: no such folder, and no Hub id such as org/name or org/name@revision")
    return name


def finished(out: str | Path) -> Path:
    """A folder that `convert` wrote. UsageError if there is none, OSError if it may not be read; what is in it, others look at."""
    folder = _out(out)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "is not there"
        raise UsageError(f"{out} {what}; give the folder that `convert` wrote")
    from humming_convert.manifest.read import readable

    readable(folder)
    return folder


def open_model(model: str | Path, findings: Findings, *, stream: bool = False) -> Checkpoint:
    """The checkpoint at a folder or of a Hub id. stream: as in `plans`.

    UsageError if there is no such path; Refused (with all findings) if it is no whole checkpoint; hub.failures.HubError.
    """
    from humming_convert.checkpoint import open_checkpoint

    name = named(model)
    if isinstance(name, Path):
        if stream:
            raise UsageError(f"--stream removes what was fetched from the Hub; {model} is a folder")
        checkpoint = open_checkpoint(name, findings)
    else:
        from humming_convert.hub.pull import open_hub

        checkpoint = open_hub(name, findings, stream=stream)
    if checkpoint is None:
        raise Refused(findings)
    return checkpoint


def check_out(model: str | Path, out: str | Path) -> None:
    """Before the model is read: `out` is no folder of it. engine.places.Overlaps; of a Hub id `convert` says it."""
    from humming_convert.engine.places import check_apart

    name = named(model)
    if isinstance(name, Path):
        check_apart(_out(out), name, replaced=False)  # what may be mounted in two places is looked for when it matters


def _out(out: str | Path) -> Path:
    if out == "":
        raise UsageError("--out is empty; name a folder")
    return Path(out)


def fetched(model: str | Path, out: str | Path | None = None, progress: Progress | None = None) -> Path:
    """The folder; of a Hub id the one in the cache, when all of it is there. As `open_model`.

    out: an output; without a revision, the commit that it was made from is meant.  progress: told how far the weight files have come."""
    name = named(model)
    if isinstance(name, Path):
        return name
    if out is not None and name.revision is None:
        name = _made_from(Path(out), name)
    from humming_convert.engine.progress import Counter
    from humming_convert.hub.pull import fetch_model

    findings = Findings()
    folder = fetch_model(name, findings, Counter(0, progress).fetched if progress is not None else None)
    if folder is None:
        raise Refused(findings)
    return folder


def _made_from(out: Path, name: HubName) -> HubName:
    """The commit that a manifest names, if it is of this model."""
    from humming_convert.hub.names import HubName
    from humming_convert.manifest.read import read_manifest

    try:
        source = read_manifest(out).get("source")
    except (OSError, ValueError):
        return name  # what is wrong with it is `verify`'s to say
    if isinstance(source, dict) and source.get("name") == name.repo and isinstance(source.get("revision"), str):
        return HubName(name.repo, source["revision"])
    return name


def parse_size(text: str, option: str = "--shard-size") -> int:
    """Bytes of `5GB`, `500MB`, `4GiB` or a plain number. UsageError otherwise."""
    units = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
    m = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?", text.strip().upper())
    if m is None or m[2] not in units or float(m[1]) * units[m[2]] < 1:
        raise UsageError(f"{option} {text}: not a size such as 5GB or 500MB")
    return int(float(m[1]) * units[m[2]])


def _pattern(option: str, text: str | None) -> str | None:
    if text is not None:
        from humming_convert.formats.expressions import BadExpression, compiled

        try:
            compiled(text)
        except BadExpression as error:
            raise UsageError(f"{option} {text!r} {error}") from None
    return text


def make_request(checkpoint: Checkpoint, findings: Findings, options: Mapping[str, Any]) -> Request:
    """A Request from plain options (names of `plan`). UsageError where they make no sense for this checkpoint."""
    from humming_convert.formats.source import ReadOptions
    from humming_convert.model.parallel import ranks
    from humming_convert.plan.types import Request
    from humming_convert.targets.activations import activation
    from humming_convert.targets.environment import compiler_version
    from humming_convert.targets.table import find_target, suggest_targets

    o = dict(options)
    name, standard, act = o.pop("target"), o.pop("standard"), o.pop("act")
    if standard and name is not None:
        raise UsageError("--standard and --target exclude each other: the standard form is made for no GPU")
    if not standard and name is None:
        raise UsageError("--target is missing (`humming-convert targets` lists them), or --standard for the form that stock vLLM loads")
    target = None
    if name is not None and (target := find_target(name)) is None:
        raise UsageError(
            f"--target {name}: no such target; did you mean {' or '.join(suggest_targets(name))}? (`humming-convert targets` lists all)"
        )
    dtype: Any = {"bf16": "BF16", "fp16": "F16", None: None}[o.pop("dtype")]
    asked = SIXTEEN_BIT.get(act)
    if asked and dtype and asked != dtype:
        raise UsageError(f"--act {act} and --dtype contradict each other: a 16-bit activation is the model dtype")
    asked_dtype, dtype = dtype, dtype or asked or checkpoint.dtype
    if target is not None and target.sm < 80 and dtype == "BF16":
        said = [option for option, given in (("--act", asked), ("--dtype", asked_dtype)) if given]
        why = " and ".join(f"{option} bf16" for option in said) or "the model dtype is bfloat16, which"
        instead = " and ".join(f"{option} fp16" for option in said or ["--dtype"])
        raise UsageError(f"{why} needs sm80 or newer; {target.name} has float16 only: {'give' if said else 'add'} {instead}")
    if act != "auto":
        try:
            activation(act, dtype)
        except ValueError as error:
            raise UsageError(f"--act: {error}") from None
    if standard and act.endswith(":static"):
        raise UsageError(f"--act {act} and --standard exclude each other: static input scales are no part of the standard form")
    tp, ep = o.pop("tp"), o.pop("ep")
    if standard and (tp, ep) != (1, 1):
        raise UsageError("--tp and --ep cut packed layers; the standard form is cut by the runtime as it loads, leave them out")
    try:
        ranks(tp, ep)
    except ValueError as error:
        raise UsageError(str(error)) from None
    entry = o.pop("entry")
    pads = {"vllm": (256, 128), "humming-layer": (1, 1)}[entry]  # runtimes.md 2.3
    pad_n, pad_k = o.pop("pad_n") or pads[0], o.pop("pad_k") or pads[1]
    try:
        compiler_version(o["cuda_compiler_version"])
    except ValueError as error:
        raise UsageError(f"--cuda-compiler-version: {error}") from None
    read = ReadOptions(**{k: o.pop(k) for k in ReadOptions.__struct_fields__})
    from humming_convert.checkpoint.config import plain_dtype

    wide = plain_dtype(checkpoint.declared_dtype)
    if wide in ("float32", "float64"):
        findings.note(
            f"dtype-{wide}", f"the model dtype is {wide}; {'bfloat16' if dtype == 'BF16' else 'float16'} is used", file="config.json"
        )
    return Request(
        target=target,
        act=act,
        entry=entry,
        pad_n=pad_n,
        pad_k=pad_k,
        dtype=dtype,
        read=read,
        tp=tp,
        ep=ep,
        fuse=o.pop("fuse") or "auto",
        include=_pattern("--include", o.pop("include")),
        exclude=_pattern("--exclude", o.pop("exclude")),
        shard_size=parse_size(str(o.pop("shard_size"))),
        **o,
    )


DEFAULTS: dict[str, Any] = {
    "target": None,
    "standard": False,
    "act": "auto",
    "act_fallback": False,
    "fuse": None,
    "on_mixed": "refuse",
    "pad_n": None,
    "pad_k": None,
    "e0m": "auto",
    "entry": "vllm",
    "humming_version": "0.1.20",
    "cuda_compiler_version": "13.0",
    "cubin_patch": True,
    "dtype": None,
    "lm_head": "dequantize",
    "w13": "keep",
    "scale_dtype": "model",
    "gptq_zeros": "auto",
    "gptq_wrap": "auto",
    "on_desc_act": "refuse",
    "e8m0_nan": "refuse",
    "missing_input_scale": "refuse",
    "qkv_layout": "auto",
    "include": None,
    "exclude": None,
    "tp": 1,
    "ep": 1,
    "shard_size": "5GB",
    "allow_lossy": False,
    "strict": False,
}
"""Every option that shapes bytes, by its name in Python, and its default (architecture.md 9.1)."""


def plan(
    model: str | Path, *, headers_only: bool = False, io: Literal["mmap", "read"] = "mmap", stream: bool = False, **options: Any
) -> Plan:
    """What `convert` would write. Options: DEFAULTS. Nothing is written.

    model: a folder, or a Hub id `org/name[@revision]`, of which only what is needed to plan is fetched; `convert` fetches the rest.
    stream: `convert` will remove each file that it fetched when it is done with it.

    Refused with all findings if the checkpoint or the request cannot be converted; UsageError if the request makes no sense.
    headers_only: data is not read; questions that need it stay open and are listed in `plan.totals["open_questions"]`.
    """
    return plans(model, [options.pop("target", None)], headers_only=headers_only, io=io, stream=stream, **options)[0]


def plans(
    model: str | Path,
    targets: Sequence[str | None],
    *,
    headers_only: bool = False,
    io: Literal["mmap", "read"] = "mmap",
    stream: bool = False,
    **options: Any,
) -> list[Plan]:
    """A plan for each target, from one reading of the source. As `plan`; Refused with the findings of all targets."""
    from humming_convert.checkpoint.reading import reader_of
    from humming_convert.plan.build import make_plan, read_source

    unknown = set(options) - set(DEFAULTS)
    if unknown:
        raise UsageError(f"unknown option {sorted(unknown)[0]!r}")
    names = [str(t).lower() for t in targets]
    if twice := [n for i, n in enumerate(names) if n in names[:i]]:
        raise UsageError(f"--target {twice[0]} is given twice")
    findings = Findings()
    checkpoint = open_model(model, findings, stream=stream)
    read = reader_of(checkpoint, io)
    made: list[Plan] = []
    refused, reading, told = Findings(), None, Findings()
    for target in targets:
        mine = Findings(findings)
        request = make_request(checkpoint, mine, DEFAULTS | options | {"target": target})
        if reading is None:  # its options are the same for all targets
            reading = read_source(checkpoint, request, read, told, headers_only=headers_only)
        mine.extend(told)
        try:
            made.append(make_plan(checkpoint, request, read, mine, headers_only=headers_only, reading=reading))
        except Refused as error:
            refused.extend(error.findings)
    refused.raise_errors()
    return made


def default_name(plan: Plan) -> str:
    """The output folder's name when none is given."""
    name = plan.source.name.rpartition("/")[2]
    target = plan.request.target
    return f"{name}-humming-standard" if target is None else f"{name}-humming-{target.name}-{plan.request.act.replace(':', '-')}"


def cache_key(plan: Plan) -> str:
    """32 hex digits that are the same as long as the output's bytes are (plan/cache_key.py). Reads the files that will be copied."""
    from humming_convert.plan.cache_key import cache_key as key_of

    return key_of(plan)


def make_how(options: Mapping[str, Any]) -> How:
    """How from plain options (names of `convert`). UsageError where they make no sense."""
    from humming_convert.engine.how import How, Part, gpu_of

    o = dict(options)
    part, memory = o.pop("split", None), o.pop("max_memory", None)
    try:
        cut = Part.parse(part) if part is not None else None
    except ValueError as error:
        raise UsageError(f"--split: {error}") from None
    try:
        gpu_of(o.get("device", "cpu"))
    except ValueError as error:
        raise UsageError(f"--device: {error}") from None
    if o.get("address") is not None and o.get("engine") != "ray":
        raise UsageError(f"--address {o['address']} names a Ray cluster, which --engine ray uses; add that, or leave --address out")
    if o.get("engine") == "ray" and o.get("device", "cpu") != "cpu":
        raise UsageError("--device cuda packs on the GPU of this machine, tasks of --engine ray run on others; take one")
    if cut is not None and o.get("engine") == "ray":
        raise UsageError("--split and --engine ray are two ways to use many machines; take one")
    if cut is not None and o.get("overwrite"):
        raise UsageError("--split writes a part; `merge --overwrite` replaces the finished folder")
    return How(part=cut, max_memory=parse_size(str(memory), "--max-memory") if memory is not None else None, **o)


def open_device(how: How) -> Packers | None:
    """What packs where `how.device` is no CPU; None where it is. gemm.device.NoDevice says what is missing and how to mend it,
    engine.on_ray.MissingExtra that Ray is, where `how.engine` wants it."""
    from humming_convert.engine.how import gpu_of

    if how.engine == "ray":
        from humming_convert.engine.on_ray import library

        library()
    if how.device == "cpu":
        return None
    from humming_convert.gemm.pack_any import open_packers

    return open_packers(gpu_of(how.device))


def check_memory(plans: Sequence[Plan], how: How, packers: Packers | None) -> None:
    """For a process that converts and ends. engine.memory.TooLittleMemory where `how.max_memory` is less than one layer at a time takes."""
    from humming_convert.engine.memory import check_enough, private_bytes

    if how.max_memory is not None and how.engine == "local":
        items = (x for plan in plans for group in (plan.layers, plan.plain) for x in group)
        check_enough(items, how.max_memory, private_bytes(), packers.held if packers is not None else 0, 1 if packers is None else 2)


def convert(plan: Plan, *, out: str | Path | None = None, progress: Progress | None = None, **how: Any) -> Result:
    """Writes what the plan says. out: default_name(plan) in the working directory. Returns the manifest and what was measured.

    how: fields of engine.how.How; `split` as `i/n`, `max_memory` as a size.
    Raises gemm.device.NoDevice if there is no such GPU, engine.run.CheckFailed if a proof fails, engine.folder.Occupied if `out` is foreign, OSError as the system gives it.
    """
    return convert_all([(plan, out if out is not None else default_name(plan))], progress=progress, **how)[0]


def convert_all(wanted: Sequence[tuple[Plan, str | Path]], *, progress: Progress | None = None, **how: Any) -> list[Result]:
    """Writes several plans of one source, each to its folder, from one reading. As `convert`."""
    from humming_convert.engine.run import run_all

    carried_out = make_how(how)
    streaming = any(p.source.arrivals is not None and p.source.arrivals.streaming for p, _ in wanted)
    if streaming and carried_out.engine == "ray":
        raise UsageError("--stream removes files while others are read, which workers on other machines cannot know of; leave out one")
    if streaming and carried_out.link_common:
        raise UsageError(
            "--link-common writes a file once for several targets, one after the other, which --stream cannot wait for; leave out one"
        )
    packers = open_device(carried_out)
    return run_all([(plan, _out(out)) for plan, out in wanted], progress=progress, how=carried_out, packers=packers)


def merge(out: str | Path, *, source: str | Path | None = None, overwrite: bool = False) -> Result:
    """Publishes what the parts of a split run wrote to `<out>.partial`. source: where the model lies now, if it was moved.

    UsageError if there is no such run; engine.merge.PartsMissing if a part is not finished.
    """
    from humming_convert.engine.folder import partial_of
    from humming_convert.engine.merge import merge_parts, recorded

    folder = _out(out)
    record = recorded(folder)
    if record is None:
        raise UsageError(f"{out}: there is no split run to merge ({partial_of(folder).name} holds no parts)")
    findings = Findings()
    return merge_parts(folder, record, open_model(source or record.source, findings), findings, overwrite=overwrite)


def inspect(model: str | Path) -> Inspection:
    """What is in a checkpoint, what contradicts what, and what each target could do with it. Never raises Refused: findings say it."""
    from humming_convert.checkpoint import open_checkpoint
    from humming_convert.plan.inspect import inspect_model

    name, findings = named(model), Findings()
    if isinstance(name, Path):
        return inspect_model(name, open_checkpoint(name, findings), findings)
    from humming_convert.hub.pull import open_hub

    return inspect_model(Path(name.repo), open_hub(name, findings), findings)


def verify(out: str | Path, *, source: str | Path | None = None) -> Verification:
    """Integrity of an output folder (digests, headers, shapes), and with `source` the round trip against it. Nothing is changed."""
    from humming_convert.proof.verify import verify_folder

    folder = finished(out)
    return verify_folder(folder, fetched(source, out) if source is not None else None)


def push(
    out: str | Path,
    repo: str,
    *,
    branch: str | None = None,
    subfolder: str | None = None,
    pull_request: bool = False,
    private: bool = False,
    dry_run: bool = False,
    yes: bool = False,
    said: Callable[[str], None] = lambda _: None,
) -> Pushed:
    """Publishes a finished folder on the Hub in one commit, after it was verified; then the Hub is asked what it holds.

    branch: default: `main` for the standard form, else one for the target and the ranks.  subfolder: a folder of `main` in its place.
    dry_run: nothing is written; what would refuse it is in `findings`.  yes: publish although no licence, or one that may restrict it, is named.  said: told what goes on.
    Refused with all findings; engine.finish.CheckFailed if the folder, or what the Hub holds, is not whole; hub.failures.HubError.
    """
    from humming_convert.hub.names import branch_fault, folder_fault, hub_name
    from humming_convert.hub.push import PushOptions, carry_out, dry, prepare_push

    name = hub_name(repo)
    if name is None or name.revision is not None:
        raise UsageError(f"{repo}: no repository such as org/name; --branch names the branch")
    if branch is not None and subfolder is not None:
        raise UsageError("--branch and --subfolder exclude each other: a folder is one of main")
    if branch is not None and (why := branch_fault(branch)) is not None:
        raise UsageError(f"--branch {branch!r}: no name of a branch: {why}; git check-ref-format has the rules")
    if subfolder is not None and (why := folder_fault(subfolder)) is not None:
        raise UsageError(f"--subfolder {subfolder!r}: not a plain path such as packed/sm90-tp1: {why}")
    folder = finished(out)
    options = PushOptions(branch=branch, subfolder=subfolder, pull_request=pull_request, private=private, yes=yes)
    findings = Findings()
    publication = prepare_push(folder, name, options, findings)
    if dry_run:
        return dry(publication, findings)
    findings.raise_errors()
    return carry_out(publication, options, said)


def recheck(out: str | Path, *, humming_version: str) -> Recheck:
    """Does another version of the library read a packed folder the same way, and would it make the same bytes? Nothing is changed."""
    from humming_convert.proof.recheck import recheck_folder
    from humming_convert.targets.environment import VERSIONS

    folder = finished(out)
    if humming_version not in VERSIONS:
        raise UsageError(f"--humming-version {humming_version}: its rules are not known here; known: {', '.join(VERSIONS)}")
    return recheck_folder(folder, humming_version)


def doctor(out: str | Path | None = None) -> list[Row]:
    """What running kernels and using the Hub need on this machine, or whether a packed folder will load here. Nothing is changed."""
    if out is None:
        from humming_convert.gemm.doctor import rows
        from humming_convert.hub.doctor import rows as rows_of_hub

        return [*rows(), *rows_of_hub()]
    from humming_convert.serve.doctor import rows as rows_of_folder

    folder = finished(out)
    return rows_of_folder(folder)


def load(out: str | Path, *, device: str = "cuda", rank: int = 0, backend: str = "core", check: bool = True) -> CheckedLayers:
    """The layers of a packed folder as callables on a GPU: `hc.load("out/")["model.layers.0.mlp.down_proj"](x)`.

    device: `cuda`, the current one, or `cuda:1`.  rank: the manifest, where there are several.  backend: `core`, the kernels of this package
    (those that the folder ships, others are compiled when they are asked for; CuPy and torch arrays), or `humming`, those of humming-kernels
    (torch tensors).  check: compare a small product with float64 for the first layer of each configuration.
    NoDevice where there is no GPU, no CuPy or no torch; Refused for a folder without packed layers, or one that this machine reads otherwise.
    """
    from humming_convert.serve.load import BACKENDS
    from humming_convert.serve.load import load as load_layers

    folder = finished(out)
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number.isdigit() or not number):
        raise UsageError(f"{device}: packed layers run on cuda, or on cuda:1")
    chosen = next((b for b in BACKENDS if b == backend), None)
    if chosen is None:
        raise UsageError(f"backend {backend!r}: one of {', '.join(BACKENDS)}")
    return load_layers(folder, int(number) if number else None, rank, chosen, check)
