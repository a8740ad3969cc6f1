"""Runs a data holder's script in a process of its own, to look at it, score and compare."""
