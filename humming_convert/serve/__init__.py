"""Reading a packed folder where it is used: the plain loader and the vLLM plugin.

In: a folder that `convert` published.  Out: layers that multiply; or a refusal that names what differs and what to do.
What decides (`refusals`, `folder`, `machine`, `deployment`, `fit`) imports neither torch nor vLLM.  Facts: runtimes.md 3, architecture.md 9.4, 9.6.
"""
