"""Hostile input: all that is read from outside is given bytes that are nearly right."""
