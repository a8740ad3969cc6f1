"""Other systems beside this project, each played for some rounds with the same numbers.

`python -m benchmarks.peers` is the front door. Nothing here is imported by the package.
"""
