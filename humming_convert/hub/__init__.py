"""The Hub: checkpoints that are fetched while they are converted, and finished folders that are published.

In: a Hub id and perhaps a revision.  Out: a Checkpoint whose files arrive; a commit.  All of the protocol is huggingface_hub's, which is
imported where it is used: it is heavy, and most runs have nothing to do with a network.
Facts: architecture.md 9.1, runtimes.md 4.
"""
