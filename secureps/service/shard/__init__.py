"""A shard's work with payloads."""
