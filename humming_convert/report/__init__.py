"""Reports for people: one self-contained page of what `inspect`, `plan` and `verify` found.

In: an Inspection, Plans, or manifests with what was checked.  Out: the text of an HTML page. Everything from a model's files is text there.
"""
