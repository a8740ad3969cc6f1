"""What a run came to: tables, charts, lines of metrics."""
