"""Model knowledge: which projections the runtime fuses or stacks, as tables, and standard layers brought to that form.

In: unfused standard layers.  Out: `fuse.fuse_model` for packed layers, `standard_form.standard_model` for `--standard`.
Facts: formats.md 10; runtimes.md 1.
"""
