"""`humming-convert kernels build|list|clean OUT`: kernels compiled ahead of time and shipped in an output folder. No GPU is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from humming_convert.cli import exits
from humming_convert.cli import options as o
from humming_convert.cli.say import print_json
from humming_convert.findings import counted

HELP = "Compile the kernels of a folder's layers ahead of time and ship them in it; no GPU is needed."
app = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
Out = Annotated[Path, typer.Argument(parser=o.place, help="An output folder of packed layers.", metavar="OUT", show_default=False)]


def packed(out: Path) -> Path:
    """The folder, if it is one of packed layers; none other ships kernels. UsageError, Refused."""
    from humming_convert import api
    from humming_convert.gemm.stored import manifest_names

    folder = api.finished(out)
    manifest_names(folder)
    return folder


@app.command("build", help="Compile every kernel that the folder's layers need, into one file of the folder.")
def build(
    out: Out,
    target: Annotated[
        str | None, typer.Option("--target", metavar="T", help="The GPU that will run them; default: the folder's target.")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", metavar="N", min=1, help="Compilers at a time; default: one a core.")] = None,
    json: o.Json = False,
) -> int:
    from humming_convert.gemm import shipped
    from humming_convert.gemm.cache import KernelCache
    from humming_convert.gemm.nvrtc import supported_sms
    from humming_convert.gemm.stored import manifest_names
    from humming_convert.manifest.read import read_manifest
    from humming_convert.targets.table import find_target, suggest_targets

    first = read_manifest(packed(out), manifest_names(out)[0])
    name = target or str(first["target"]["name"])
    found = find_target(name)
    if found is None:
        raise typer.BadParameter(f"{name}: no such target; did you mean {' or '.join(suggest_targets(name))}?")
    known = supported_sms()
    if not found.nvrtc or found.sm not in known:
        raise typer.BadParameter(f"NVRTC here compiles for no {found.name}; it knows {', '.join(f'sm{s}' for s in known)}")
    built = shipped.build(out, found.sm, KernelCache(), jobs, (lambda _: None) if json else print)
    if json:
        print_json({"status": "done", "file": built.path.name, "kernels": built.kernels, "layers": built.layers, "findings": []})
    else:
        print(f"{built.path}: {counted(built.kernels, 'kernel')} for {counted(built.layers, 'layer')}, {built.path.stat().st_size} bytes")
    return exits.DONE


@app.command("list", help="List the kernels that a folder ships.")
def list_(out: Out, json: o.Json = False) -> int:
    from humming_convert.gemm import shipped

    found = {path.name: shipped.index_of(path) for path in shipped.archives(packed(out))}
    if json:
        print_json({"status": "ok", "archives": found, "findings": []})
        return exits.DONE
    for name, said in found.items():
        print(f"{name}: {said['arch']}, NVRTC {said['compiler']}")
        for key, entry in said["kernels"].items():
            print(f"  {key}  {entry['name']:14} {', '.join(entry['layers'][:3])}{' ...' if len(entry['layers']) > 3 else ''}")
        for layer, choice in said.get("layers", {}).items():
            against = "".join(f"; not {family}: {reason}" for family, reason in choice["rejected"].items())
            print(f"  {layer}: {choice['family']}{against}")
    if not found:
        print("no kernels are shipped in this folder; `humming-convert kernels build OUT` builds them")
    return exits.DONE


@app.command("clean", help="Remove the kernels that a folder ships.")
def clean(out: Out, json: o.Json = False) -> int:
    from humming_convert.gemm import shipped

    count = shipped.clean(packed(out))
    if json:
        print_json({"status": "done", "removed": count, "findings": []})
    else:
        print(f"{out}: {counted(count, 'file')} of kernels removed")
    return exits.DONE
