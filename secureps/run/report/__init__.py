"""Reports on a run: tables, charts, and lines of metrics."""
