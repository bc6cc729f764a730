"""The rules that files of a checkpoint must keep, before anything is known about what the tensors mean.

In: nothing.  Out: one Rule a fact, by name, and `broken`, which makes the finding of one.
Facts: the safetensors format (its README and 0.8.0 of its library), formats.md 1.1, 1.2, 12.
"""

from __future__ import annotations

from typing import Any

from humming_convert.findings import Finding, Rule

FILE_KIND = Rule(
    1, "file-kind", "a file that is read is a regular file or a link to one: no directory, pipe, device, dangling or looping link"
)
FILE_UNREADABLE = Rule(2, "file-unreadable", "a file that is needed can be opened and read")
JSON_LIMIT = Rule(3, "json-limit", "a JSON file has at most 100,000,000 bytes")
JSON_ENCODING = Rule(4, "json-encoding", "JSON is UTF-8, also after its escapes are resolved")
JSON_DEEP = Rule(5, "json-deep", "JSON is nested at most 64 deep")
JSON_INVALID = Rule(6, "json-invalid", "JSON keeps the grammar of RFC 8259")
JSON_CONSTANT = Rule(7, "json-constant", "JSON holds no NaN, Infinity or number outside float64")
JSON_DUPLICATE_KEY = Rule(8, "json-duplicate-key", "no JSON object holds a key twice")
JSON_NOT_OBJECT = Rule(9, "json-not-object", "JSON is an object at the top")

HEADER_SHORT = Rule(10, "header-short", "a weight file has the 8 bytes that give the length of its header")
HEADER_LENGTH = Rule(11, "header-length", "a header ends inside its file")
HEADER_LIMIT = Rule(12, "header-limit", "a header has at most 100,000,000 bytes")
HEADER_START = Rule(13, "header-start", "a header begins with {")
HEADER_METADATA = Rule(14, "header-metadata", "`__metadata__` maps strings to strings")
HEADER_ENTRY = Rule(15, "header-entry", "a header entry is an object of dtype, shape and data_offsets, all three and nothing else")
HEADER_DTYPE = Rule(16, "header-dtype", "a dtype is one that is read")
HEADER_SHAPE = Rule(17, "header-shape", "a shape is at most 32 integers of 0 or more, whose product in bytes fits 63 bits")
HEADER_OFFSETS = Rule(18, "header-offsets", "data_offsets are two integers, 0 <= begin <= end")
HEADER_SIZE = Rule(19, "header-size", "a tensor takes as many bytes as its dtype and shape say")
HEADER_OUTSIDE = Rule(20, "header-outside", "a tensor ends inside its file")
FILE_TRUNCATED = Rule(21, "file-truncated", "a weight file has all the bytes that its header describes")
HEADER_OVERLAP = Rule(22, "header-overlap", "no two tensors share bytes")
HEADER_HOLE = Rule(23, "header-hole", "tensors follow each other without holes")
FILE_TRAILING = Rule(24, "file-trailing", "a weight file ends with its last tensor")

NOT_A_CHECKPOINT = Rule(25, "not-a-checkpoint", "a checkpoint is a folder with a config.json")
NO_WEIGHTS = Rule(26, "no-weights", "a checkpoint holds safetensors files")
WEIGHTS_PICKLE = Rule(27, "weights-pickle", "weights are no pickle files")
INDEX_MAP = Rule(28, "index-map", "an index holds a weight_map of at least one tensor")
INDEX_FILE_NAME = Rule(29, "index-file-name", "an index names plain *.safetensors files of its own folder")
SHARD_MISSING = Rule(30, "shard-missing", "every file that the index names, or that numbered names imply, is there")
TENSOR_MISSING = Rule(31, "tensor-missing", "a file holds the tensors for which the index names it")
TENSOR_TWICE = Rule(32, "tensor-twice", "a tensor stands in one file only; with an index the file it names is read", "warning")
TENSOR_AMBIGUOUS = Rule(33, "tensor-ambiguous", "without an index a tensor stands in one file only")
TENSOR_UNLISTED = Rule(34, "tensor-unlisted", "the index names every tensor of its files; others are not read", "warning")
CONFIG_SECTION = Rule(35, "config-section", "a quantization config is an object")
DTYPE_UNKNOWN = Rule(36, "dtype-unknown", "config.json names a model dtype that is known; else the tensors decide", "warning")
DTYPE_UNDECIDED = Rule(37, "dtype-undecided", "where config.json names no known dtype, the weights that are not quantized have one dtype")
FILE_NOT_COPIED = Rule(38, "file-not-copied", "the files beside the weights can be copied under their names", "warning")
FILE_NAME = Rule(39, "file-name", "the names of weight files are UTF-8 without control characters")

DTYPE_CONTRADICTION = Rule(40, "dtype-contradiction", "dtype and torch_dtype of config.json name one dtype; else dtype is taken", "warning")

RULES: tuple[Rule, ...] = (
    FILE_KIND,
    FILE_UNREADABLE,
    JSON_LIMIT,
    JSON_ENCODING,
    JSON_DEEP,
    JSON_INVALID,
    JSON_CONSTANT,
    JSON_DUPLICATE_KEY,
    JSON_NOT_OBJECT,
    HEADER_SHORT,
    HEADER_LENGTH,
    HEADER_LIMIT,
    HEADER_START,
    HEADER_METADATA,
    HEADER_ENTRY,
    HEADER_DTYPE,
    HEADER_SHAPE,
    HEADER_OFFSETS,
    HEADER_SIZE,
    HEADER_OUTSIDE,
    FILE_TRUNCATED,
    HEADER_OVERLAP,
    HEADER_HOLE,
    FILE_TRAILING,
    NOT_A_CHECKPOINT,
    NO_WEIGHTS,
    WEIGHTS_PICKLE,
    INDEX_MAP,
    INDEX_FILE_NAME,
    SHARD_MISSING,
    TENSOR_MISSING,
    TENSOR_TWICE,
    TENSOR_AMBIGUOUS,
    TENSOR_UNLISTED,
    CONFIG_SECTION,
    DTYPE_UNKNOWN,
    DTYPE_UNDECIDED,
    FILE_NOT_COPIED,
    FILE_NAME,
    DTYPE_CONTRADICTION,
)


def broken(rule: Rule, message: str, **where: Any) -> Finding:
    """The finding of a rule that does not hold. `where`: layer, tensor, file, advice, count."""
    return Finding(severity=rule.severity, code=rule.code, message=message, **where)
