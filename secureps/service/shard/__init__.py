"""The worker of a shard: stores, adds and opens payloads, and keeps versions."""
