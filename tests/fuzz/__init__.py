"""Hostile input: whatever is read from outside takes bytes that are nearly right, by the million."""
