"""A shard: stores, adds, opens, steps."""
