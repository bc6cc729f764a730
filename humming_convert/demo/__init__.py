"""The demo: sample checkpoints of every family, converted and checked against the numbers that went in.

samples.py makes the folders, decode.py reads outputs back by formula, run.py does both and gives the rows of a table.
Nothing here uses the package's own readers or layouts to say what is right.
"""
