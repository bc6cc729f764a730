"""What a CI job reads of a run: findings as SARIF and as workflow commands, and the table of all codes that they can have.

In: findings, and where the model or the folder lies.  Out: documents and lines.
Facts: architecture.md 9.7; SARIF 2.1.0 (OASIS, errata 01).
"""
