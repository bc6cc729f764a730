"""What besides the GPU shapes packed bytes: the CUDA compiler, cubin patching, the library's version.

Facts: layouts.md (head), 4.2 (last line), 9.
"""

from __future__ import annotations

from msgspec import Struct

VERSIONS = ("0.1.19", "0.1.20")


class Environment(Struct, frozen=True):
    """`compiler`: (major, minor) of NVRTC (NVCC on PPU). `cubin_patch`: false where `HUMMING_DISABLE_PATCH_CUBIN=1`. `humming_version`: of VERSIONS."""

    compiler: tuple[int, int] = (13, 0)
    cubin_patch: bool = True
    humming_version: str = "0.1.20"

    def __post_init__(self) -> None:
        if self.humming_version not in VERSIONS:
            raise ValueError(f"humming version {self.humming_version!r} is not known; known: {', '.join(VERSIONS)}")

    @property
    def splits_groups(self) -> bool:
        """Group sizes that are not powers of two are split, and one-column scales spread (S2c, S4a)."""
        return self.humming_version != "0.1.19"

    @property
    def fits_range(self) -> bool:
        """The E8M0 range per row is chosen from the data (S2e)."""
        return self.humming_version != "0.1.19"

    @property
    def pads_rows_with_maximum(self) -> bool:
        """Padded rows of fused E8M0 scales take the expert's largest byte; before, byte 127."""
        return self.humming_version != "0.1.19"

    @property
    def e0m_shifts_fp_zero_points(self) -> bool:
        """S1 also converts layers with floating zero points, shifted by the midpoint where that is exact."""
        return self.humming_version == "0.1.19"

    @property
    def e0m_wants_k_of_32(self) -> bool:
        """S1 and S2a need K to be a multiple of 32."""
        return self.humming_version == "0.1.19"


def compiler_version(text: str) -> tuple[int, int]:
    """`13.0` -> (13, 0). ValueError if it is no version."""
    major, dot, minor = text.partition(".")
    if not (major.isdecimal() and (minor.isdecimal() or not dot)):
        raise ValueError(f"{text!r} is no CUDA compiler version; write it as 13.0")
    return int(major), int(minor or 0)
