"""One sample checkpoint by name, for tests that need just one."""

from __future__ import annotations

from humming_convert.demo.models import Sample, decoder, gpt_oss
from humming_convert.demo.samples import DECODERS

NAMES = tuple(row["name"] for row in DECODERS) + ("mxfp4-gpt-oss",)


def sample(name: str) -> Sample:
    if name == "mxfp4-gpt-oss":
        return gpt_oss(name)
    return decoder(**next(row for row in DECODERS if row["name"] == name))
