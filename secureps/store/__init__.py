"""A process's files: keys, journals, checkpoints, spools."""
