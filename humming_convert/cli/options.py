"""The options of `convert` and `plan`, once, with their help texts. Facts: architecture.md 9.1."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import typer


class Fuse(str, Enum):
    vllm = "vllm"
    none = "none"


class OnMixed(str, Enum):
    refuse = "refuse"
    dequantize = "dequantize"
    unfuse = "unfuse"


class E0m(str, Enum):
    auto = "auto"
    never = "never"


class Entry(str, Enum):
    vllm = "vllm"
    humming_layer = "humming-layer"


class HummingVersion(str, Enum):
    v0_1_20 = "0.1.20"
    v0_1_19 = "0.1.19"


class Dtype(str, Enum):
    bf16 = "bf16"
    fp16 = "fp16"


class OnDescAct(str, Enum):
    refuse = "refuse"
    dequantize = "dequantize"
    requant = "requant"


class Zeros(str, Enum):
    auto = "auto"
    v1 = "v1"
    v2 = "v2"


class Wrap(str, Enum):
    auto = "auto"
    word = "word"
    field = "field"


class LmHead(str, Enum):
    dequantize = "dequantize"
    keep = "keep"


class W13(str, Enum):
    keep = "keep"
    contiguous = "contiguous"


class E8m0Nan(str, Enum):
    refuse = "refuse"
    zero_group = "zero-group"


class MissingInputScale(str, Enum):
    refuse = "refuse"
    max = "max"


class QkvLayout(str, Enum):
    auto = "auto"
    plain = "plain"
    chunked = "chunked"


class ScaleDtype(str, Enum):
    model = "model"
    source = "source"


class Io(str, Enum):
    mmap = "mmap"
    read = "read"


class Engine(str, Enum):
    local = "local"
    ray = "ray"


def io_of(io: Io | None, default: Literal["mmap", "read"]) -> Literal["mmap", "read"]:
    """default: what is faster where nobody says: mapped small tensors for the plan, reads for the passes (passes_cpu.md 3)."""
    return default if io is None else "read" if io is Io.read else "mmap"


def place(text: str) -> Path:
    """A path as it was given; what the system says of it comes with its own exit code. An empty one would be the working directory."""
    if not text:
        raise typer.BadParameter("it is empty; give a name")
    return Path(text)


_WHAT, _SOURCE, _LAYOUT, _RUN, _SAY = "What to make", "How to read the source", "How to lay it out", "How to run", "What to print"

Model = Annotated[str, typer.Argument(help="A checkpoint folder, or a Hub id org/name[@revision].", metavar="MODEL", show_default=False)]
Target = Annotated[
    list[str] | None,
    typer.Option(
        "--target", metavar="T", help="GPU: sm90, h100, … (`humming-convert targets`); several: repeat it.", rich_help_panel=_WHAT
    ),
]
Act = Annotated[str, typer.Option("--act", metavar="A", help="Activation: bf16 fp16 fp8 int8 nvfp4 … or auto.", rich_help_panel=_WHAT)]
ActFallback = Annotated[
    bool, typer.Option("--act-fallback", help="Let layers fall back where the activation is illegal.", rich_help_panel=_WHAT)
]
Standard = Annotated[
    bool, typer.Option("--standard", help="Write the Humming standard form for stock vLLM, not a GPU's bytes.", rich_help_panel=_WHAT)
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        parser=place,
        metavar="DIR",
        help="Output folder; of several targets their parent. [default: <name>-humming-<target>-<act>]",
        rich_help_panel=_WHAT,
    ),
]
FuseOption = Annotated[
    Fuse | None,
    typer.Option("--fuse", help="Fuse and stack as vLLM does, or keep every projection. [default: vllm]", rich_help_panel=_LAYOUT),
]
OnMixedOption = Annotated[
    OnMixed, typer.Option("--on-mixed", help="A fused layer whose parts cannot share one form.", rich_help_panel=_LAYOUT)
]
PadN = Annotated[int | None, typer.Option("--pad-n", min=1, help="Rows are padded to a multiple. [default: 256]", rich_help_panel=_LAYOUT)]
PadK = Annotated[
    int | None, typer.Option("--pad-k", min=1, help="Columns are padded to a multiple. [default: 128]", rich_help_panel=_LAYOUT)
]
E0mOption = Annotated[
    E0m, typer.Option("--e0m", help="Symmetric integers to sign-magnitude where Humming does it.", rich_help_panel=_LAYOUT)
]
EntryOption = Annotated[Entry, typer.Option("--entry", help="Whose preparation to reproduce where they differ.", rich_help_panel=_LAYOUT)]
VersionOption = Annotated[
    HummingVersion, typer.Option("--humming-version", help="humming-kernels that will run it.", rich_help_panel=_LAYOUT)
]
Compiler = Annotated[
    str, typer.Option("--cuda-compiler-version", metavar="V", help="CUDA compiler on the serving machine.", rich_help_panel=_LAYOUT)
]
NoCubinPatch = Annotated[
    bool, typer.Option("--no-cubin-patch", help="The serving machine runs without Humming's cubin patch.", rich_help_panel=_LAYOUT)
]
DtypeOption = Annotated[Dtype | None, typer.Option("--dtype", help="Model dtype. [default: the checkpoint's]", rich_help_panel=_LAYOUT)]
ScaleDtypeOption = Annotated[
    ScaleDtype, typer.Option("--scale-dtype", help="Scales in the model dtype, or a 16-bit source dtype kept.", rich_help_panel=_LAYOUT)
]
W13Option = Annotated[W13, typer.Option("--w13", help="Interleaved gate and up rows: keep or take apart.", rich_help_panel=_LAYOUT)]
LmHeadOption = Annotated[LmHead, typer.Option("--lm-head", help="A quantized lm_head.", rich_help_panel=_LAYOUT)]
OnDescActOption = Annotated[
    OnDescAct, typer.Option("--on-desc-act", help="Act-order that cannot be folded exactly.", rich_help_panel=_SOURCE)
]
ZerosOption = Annotated[Zeros, typer.Option("--gptq-zeros", help="How asymmetric GPTQ zero points are stored.", rich_help_panel=_SOURCE)]
WrapOption = Annotated[Wrap, typer.Option("--gptq-wrap", help="How v1 zero points of 0 were written.", rich_help_panel=_SOURCE)]
E8m0NanOption = Annotated[E8m0Nan, typer.Option("--e8m0-nan", help="E8M0 scale byte 255 (NaN).", rich_help_panel=_SOURCE)]
MissingInputScaleOption = Annotated[
    MissingInputScale, typer.Option("--missing-input-scale", help="A static input scale that some parts lack.", rich_help_panel=_SOURCE)
]
QkvLayoutOption = Annotated[QkvLayout, typer.Option("--qkv-layout", help="Row order of a fused qkv_proj.", rich_help_panel=_SOURCE)]
Include = Annotated[str | None, typer.Option("--include", metavar="RE", help="Only layers whose name matches.", rich_help_panel=_LAYOUT)]
Exclude = Annotated[str | None, typer.Option("--exclude", metavar="RE", help="Layers to pass through unchanged.", rich_help_panel=_LAYOUT)]
Tp = Annotated[int, typer.Option("--tp", min=1, metavar="N", help="Tensor-parallel ranks: one file series each.", rich_help_panel=_LAYOUT)]
Ep = Annotated[
    int, typer.Option("--ep", min=1, metavar="N", help="Expert-parallel ranks: whole experts, a multiple of --tp.", rich_help_panel=_LAYOUT)
]
ShardSize = Annotated[str, typer.Option("--shard-size", metavar="SIZE", help="Largest output file.", rich_help_panel=_LAYOUT)]
AllowLossy = Annotated[bool, typer.Option("--allow-lossy", help="Permit lossy steps that are not in the free list.", rich_help_panel=_WHAT)]
Strict = Annotated[bool, typer.Option("--strict", help="Warnings and every lossy step are errors.", rich_help_panel=_WHAT)]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Workers. [default: all cores]", rich_help_panel=_RUN)]
IoOption = Annotated[
    Io | None,
    typer.Option("--io", help="How source files are read. [default: what is faster for each step]", rich_help_panel=_RUN),
]
DeviceOption = Annotated[
    str, typer.Option("--device", metavar="cpu|cuda[:I]", help="What packs the weights; the bytes are the same.", rich_help_panel=_RUN)
]
MaxMemory = Annotated[
    str | None, typer.Option("--max-memory", metavar="SIZE", help="Private memory of all workers together.", rich_help_panel=_RUN)
]
Split = Annotated[str | None, typer.Option("--split", metavar="I/N", help="Write part I of N; `merge` joins them.", rich_help_panel=_RUN)]
EngineOption = Annotated[Engine, typer.Option("--engine", help="Threads here, or tasks of a Ray cluster.", rich_help_panel=_RUN)]
Address = Annotated[
    str | None, typer.Option("--address", metavar="A", help="Ray cluster. [default: one on this machine]", rich_help_panel=_RUN)
]
LinkCommon = Annotated[bool, typer.Option("--link-common", help="Several targets: files they share are hard links.", rich_help_panel=_RUN)]
Stream = Annotated[bool, typer.Option("--stream", help="Hub id: remove each fetched file when it is done.", rich_help_panel=_RUN)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a finished or foreign folder, atomically.", rich_help_panel=_RUN)]
Fresh = Annotated[bool, typer.Option("--fresh", help="Discard what an interrupted run left.", rich_help_panel=_RUN)]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel=_SAY)]
HtmlFile = Annotated[
    Path | None,
    typer.Option(
        "--html", parser=place, metavar="FILE", help="Write a page for people too: one file that needs no network.", rich_help_panel=_SAY
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Errors only.", rich_help_panel=_SAY)]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Every finding, one by one.", rich_help_panel=_SAY)]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress display.", rich_help_panel=_SAY)]
HeadersOnly = Annotated[
    bool, typer.Option("--headers-only", help="From headers and configs alone; open questions are listed.", rich_help_panel=_RUN)
]
Sarif = Annotated[
    Path | None, typer.Option("--sarif", parser=place, metavar="FILE", help="The findings as SARIF 2.1.0, in a file.", rich_help_panel=_SAY)
]
Annotations = Annotated[
    bool, typer.Option("--annotations", help="The findings as workflow commands of GitHub, on stderr.", rich_help_panel=_SAY)
]
Fingerprint = Annotated[bool, typer.Option("--fingerprint", help="Print the fingerprint alone.", rich_help_panel=_SAY)]
CacheKey = Annotated[
    bool, typer.Option("--cache-key", help="Print a key alone that is the same as long as the output's bytes are.", rich_help_panel=_SAY)
]
