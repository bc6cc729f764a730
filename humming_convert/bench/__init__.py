"""`bench`: the layers of a packed folder timed on a GPU, beside cuBLAS, `_scaled_mm`, humming-kernels and the time of reading their bytes.

In: a folder, numbers of rows.  Out: a Document, from which the table, the JSON and the picture are made. What needs a GPU is in `run` and the
contenders; the rest reads documents.  Facts: docs/bench.md.
"""
