"""loraexample."""
