"""Runs parties as processes: executor, loop, workers, logs and metrics."""
