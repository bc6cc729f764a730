"""The codes of findings, for assertions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from humming_convert.findings import Finding, Refused


def codes(findings: Iterable[Finding]) -> list[str]:
    return [f.code for f in findings if f.severity == "error"]


def refused(call: Callable[[], Any]) -> Finding:
    """The first error of what `call` refuses."""
    with pytest.raises(Refused) as got:
        call()
    return next(f for f in got.value.findings if f.severity == "error")
