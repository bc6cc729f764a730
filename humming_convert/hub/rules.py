"""What must hold between this machine and the Hub, one Rule a fact.

In: nothing.  Out: rules by name.  Facts: runtimes.md 4, huggingface_hub 1.0 to 2.4.
"""

from __future__ import annotations

from humming_convert.findings import Rule

NOT_FOUND = Rule(900, "hub-not-found", "a Hub id names a model that there is, and that this token may see")
REVISION = Rule(901, "hub-revision", "a revision is a branch, a tag or a commit of the model")
GATED = Rule(902, "hub-gated", "access to a gated model was asked for and granted")
DENIED = Rule(903, "hub-denied", "the token permits what is asked for")
RATE = Rule(904, "hub-rate-limit", "the Hub's limit of requests is not reached")
UNREACHABLE = Rule(905, "hub-unreachable", "the Hub can be reached, or `HF_HUB_OFFLINE=1` says that it need not be")
OFFLINE = Rule(906, "hub-offline", "offline, all that is needed is in the cache")
MISSING = Rule(907, "hub-file-missing", "a file that the Hub lists at a commit can be fetched from it")
RANGES = Rule(908, "hub-ranges", "the Hub answers a request for a part of a file with that part")
DAMAGED = Rule(909, "hub-file-damaged", "a fetched file has the size and the checksum that the Hub lists for it")
FAILED = Rule(910, "hub-failed", "the Hub answers without an error of its own")
UNLISTED = Rule(911, "hub-unlisted", "offline, the list of the model's files is known from an earlier run", "warning")
SPACE = Rule(912, "hub-no-space", "the files to fetch fit on the cache's disk")
IN_USE = Rule(913, "hub-in-use", "one run at a time streams a commit of a model")
FOLDER_TAKEN = Rule(914, "hub-or-folder", "a folder here that has the name of a model of the Hub holds a config.json", "note")

FOLDER = Rule(920, "push-folder", "what is published is a finished folder that verifies")
LICENCE = Rule(921, "push-license", "the source's card names a licence that permits publishing, or `--yes` takes the responsibility")
TARGET = Rule(922, "push-target", "a branch or a sub-folder holds one output; what is there is another state of the same one")
RACED = Rule(923, "push-raced", "no other commit came to the branch between looking at it and writing it")
HELD = Rule(924, "push-held", "after a commit the Hub holds every file with the size and the checksum of the local one")
LIMITS = Rule(925, "push-limits", "a commit keeps the Hub's limits of sizes and numbers of files")
PRIVATE = Rule(926, "push-private", "a repository that is there is private where `--private` asks for it")

RULES = (
    NOT_FOUND,
    REVISION,
    GATED,
    DENIED,
    RATE,
    UNREACHABLE,
    OFFLINE,
    MISSING,
    RANGES,
    DAMAGED,
    FAILED,
    UNLISTED,
    SPACE,
    IN_USE,
    FOLDER_TAKEN,
) + (
    FOLDER,
    LICENCE,
    TARGET,
    RACED,
    HELD,
    LIMITS,
    PRIVATE,
)
