"""The block size of FP8 scales: one for all modules of a config entry, proved by every scale grid or refused.

In: what an entry of the config says, the modules it is about.  Out: the block size they are read with; a warning where the grids follow another.
Facts: formats.md 4.4, 7, 12 row 47. A grid of ceil(length / size) blocks fits many sizes, so one module alone never decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from humming_convert.checkpoint.tensors import TensorView
from humming_convert.findings import Rule
from humming_convert.formats.assemble import matching
from humming_convert.formats.source import Module, Source

RULES = (
    Rule(663, "block-size-lies", "the config's block size is that of the scale grids of all its modules", "warning"),
    Rule(664, "block-size-guessed", "the config says the block size of a grid of scales", "warning"),
)

Block = tuple[int, int]
SCALES = ("weight_scale_inv", "weight_scale", "scale")
KINDS = ("fp8", "fp8-stacked", "mxfp8")
DEFAULT_BLOCK = (128, 128)  # of every published model with block scales (formats.md 7)


class Grid(Struct, frozen=True):
    """The scales of one matrix: its lengths (N, K) and the blocks counted along each."""

    name: str
    lengths: tuple[int, int]
    counts: tuple[int, int]

    def fits(self, block: Block) -> bool:
        return all(-(-length // size) == count for length, size, count in zip(self.lengths, block, self.counts, strict=True))

    def rounded_down(self, block: Block) -> bool:
        """True if the last, shorter blocks have no scales (formats.md 12 row 47)."""
        return all(length // size == count for length, size, count in zip(self.lengths, block, self.counts, strict=True))


def grid_shape(scale: TensorView) -> tuple[int, ...]:
    """ModelOpt stores (blocks of rows, 1, blocks of columns, 1)."""
    shape = tuple(scale.shape)
    return (shape[0], shape[2]) if len(shape) == 4 and shape[1] == shape[3] == 1 else shape


def _pairs(module: Module) -> Iterator[tuple[str, TensorView, TensorView | None]]:
    """(name, weight, scale) of a module, or of each stack that it holds."""
    t = module.tensors
    if "weight" in t:
        yield module.name, t["weight"], next((t[s] for s in SCALES if s in t), None)
        return
    for suffix, view in t.items():
        if len(view.shape) == 3:
            yield f"{module.name}.{suffix}", view, t.get(f"{suffix}_scale_inv") or t.get(f"{suffix}_scale")


def grids_of(modules: Iterable[Module]) -> Iterator[Grid]:
    """Modules with a grid of scales; a lone scale without axes, and one E8M0 byte for 32 columns (MXFP8), tell no block size."""
    for module in modules:
        for name, weight, scale in _pairs(module):
            if scale is None or len(weight.shape) not in (2, 3):
                continue
            shape, (n, k) = grid_shape(scale), weight.shape[-2:]
            one_in_32 = scale.dtype in ("U8", "F8_E8M0") and shape[-2:] == (n, k // 32)
            if len(shape) == len(weight.shape) and shape[:-2] == weight.shape[:-2] and 0 not in (n, k, *shape) and not one_in_32:
                yield Grid(name, (n, k), (shape[-2], shape[-1]))


def settle(source: Source, place: str, key: str, declared: Block | None, modules: Iterable[Module]) -> Block | None:
    """The block size of all modules of an entry. Where no one size fits them all, the declared one: each module that it does not fit is an error."""
    grids = list(grids_of(m for m in modules if not _chunked(source, m)))
    wrong = [g for g in grids if declared is not None and not g.fits(declared)]
    if declared is None or not wrong:
        return declared
    other = _followed(declared, grids, wrong)
    if other is None:
        return declared
    first = wrong[0]
    source.findings.warning(
        "block-size-lies",
        f"{place} says {key} {list(declared)}, the scale grids of its modules have blocks of {other[0]} x {other[1]} "
        f"(the first: {first.name}, {list(first.counts)} scales for {list(first.lengths)}); the tensors are followed in all of them",
        file="config.json",
        advice="correct the block size in the config",
        count=len(grids),
    )
    return other


def fp8_modules(modules: Mapping[str, Iterable[Module]]) -> list[Module]:
    """Modules that may have block scales."""
    return matching(modules, *KINDS)


def guessed(source: Source, name: str) -> None:
    """block-size-guessed, once for a checkpoint."""
    if source.shared.setdefault("block_guessed", name) == name:
        source.findings.warning(
            "block-size-guessed",
            f"no block size is in the config; {DEFAULT_BLOCK[0]} x {DEFAULT_BLOCK[1]}, which fits the grids of scales, is taken "
            f"(the first: {name}); other sizes would fit them too",
            file="config.json",
            advice="give the block size in the config (weight_block_size, block_structure)",
        )


def _chunked(source: Source, module: Module) -> bool:
    """MiMo's qkv_proj may have a grid for each of its chunks of rows (mimo.py)."""
    return source.checkpoint.model_type.startswith("mimo") and module.name.endswith(".qkv_proj")


def _followed(declared: Block, grids: Sequence[Grid], wrong: Sequence[Grid]) -> Block | None:
    """The one size, other than the declared, that fits every grid; None if there is none or more than one reading."""
    if all(g.rounded_down(declared) for g in wrong):
        return None
    sizes = [_along(axis, declared[axis], grids) for axis in (0, 1)]
    if sizes[0] is None or sizes[1] is None:
        return None
    found = (sizes[0], sizes[1])
    # an axis that the wrong size happens to fit proves nothing where the usual size fits it too
    doubtful = found != DEFAULT_BLOCK and all(g.fits(DEFAULT_BLOCK) for g in grids)
    return found if not doubtful or _same(found, DEFAULT_BLOCK, grids) else None


def _along(axis: int, declared: int, grids: Sequence[Grid]) -> int | None:
    """The size along one axis: the declared one where it fits, 128, or the power of two that fits and divides a length into its blocks."""
    pairs = [(g.lengths[axis], g.counts[axis]) for g in grids]

    def fits(size: int) -> bool:
        return all(-(-length // size) == count for length, count in pairs)

    if fits(declared):
        return declared
    if fits(DEFAULT_BLOCK[axis]):
        return DEFAULT_BLOCK[axis]
    exact = {length // count for length, count in pairs if length >= count > 1 and length % count == 0}
    return next((size for size in sorted(exact) if size & (size - 1) == 0 and fits(size)), None)


def _same(a: Block, b: Block, grids: Sequence[Grid]) -> bool:
    """True if both sizes spread every grid alike: they differ only where one block holds the whole length."""
    return all(x == y or all(g.counts[axis] == 1 for g in grids) for axis, (x, y) in enumerate(zip(a, b, strict=True)))
