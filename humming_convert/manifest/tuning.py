"""The tuning file of a folder: which kernels were the quickest on which GPU. It changes no byte of a layer and no result beyond rounding.

In: a folder.  Out: TuningFile, one for each architecture of GPUs, beside the manifest, which lists it.
No times and no dates are in it: the same winners give the same bytes.  Schema: schemas/tuning.schema.json.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from msgspec import Struct

FORMAT, VERSION = "humming-tuning", 1
PREFIX, SUFFIX = "humming_tuning-", ".json"


class TunedRange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """up_to: rows of x (with experts: rows an expert) from the range before on; None: all beyond.  tuning: fields of gemm.Tuning."""

    up_to: int | None
    family: str
    tuning: dict[str, int]


class TunedLayer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """key: digest of the layer's configuration and mathematics, as the kernels see them.  name: of one such layer."""

    key: str
    name: str
    ranges: tuple[TunedRange, ...]


class TunedDevice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """name: of the GPU.  compiler: version of NVRTC.  templates: digest of the kernels' text; measured with these and no others."""

    name: str
    sm: int
    compiler: str
    templates: str
    layers: tuple[TunedLayer, ...]


class TuningFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str = FORMAT
    format_version: int = VERSION
    arch: str
    devices: tuple[TunedDevice, ...]

    def device(self, name: str) -> TunedDevice | None:
        return next((d for d in self.devices if d.name == name), None)

    def with_device(self, device: TunedDevice) -> TuningFile:
        """In the place of what stood there for that GPU."""
        kept = [d for d in self.devices if d.name != device.name]
        return msgspec.structs.replace(self, devices=tuple(sorted([*kept, device], key=lambda d: d.name)))


def file_name(arch: str) -> str:
    return f"{PREFIX}{arch}{SUFFIX}"


def is_tuning(name: str) -> bool:
    return name.startswith(PREFIX) and name.endswith(SUFFIX)


def encode(file: TuningFile) -> bytes:
    text = json.dumps(msgspec.to_builtins(file), indent=1, sort_keys=True, ensure_ascii=False)
    return (text + "\n").encode()


def decode(data: bytes, name: str) -> TuningFile:
    """name: of the file. ValueError, which says what is wrong with it."""
    try:
        file = msgspec.json.decode(data, type=TuningFile)
    except msgspec.MsgspecError as error:
        raise ValueError(f"no tuning file: {error}") from None
    if (file.format, file.format_version) != (FORMAT, VERSION):
        raise ValueError(f"{file.format} {file.format_version} is not read, {FORMAT} {VERSION} is")
    if file_name(file.arch) != name:
        raise ValueError(f"it is of {file.arch}, by its name of another architecture")
    for device in file.devices:
        for layer in device.layers:
            bounds = [r.up_to for r in layer.ranges]
            if not bounds or bounds[-1] is not None or None in bounds[:-1] or bounds[:-1] != sorted({b for b in bounds[:-1] if b}):
                raise ValueError(f"{layer.name}: ranges {bounds} do not grow up to an open one")
    return file


def read(path: Path) -> TuningFile:
    """OSError; ValueError as of `decode`."""
    return decode(path.read_bytes(), path.name)
