"""What a process keeps on disk: keys, journals, checkpoints, spools."""
