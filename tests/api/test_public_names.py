"""The names of the package (architecture.md 9.8)."""

from __future__ import annotations

from importlib import import_module

import humming_convert as hc


def test_the_room_of_plans_does_not_hide_the_function() -> None:
    room = import_module("humming_convert.plan.build")
    assert callable(hc.plan) and hc.plan is import_module("humming_convert.api").plan
    assert room is import_module("humming_convert.plan.build")


def test_every_public_name_is_there() -> None:
    assert all(getattr(hc, name) is not None for name in hc.__all__)
