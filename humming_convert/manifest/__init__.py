"""What stands beside the weights of an output: the manifest, config.json, the model card, and the schemas of our documents.

In: a Plan and the engine's results.  Out: plain documents.  Facts: architecture.md 9.4, 9.6.
"""
