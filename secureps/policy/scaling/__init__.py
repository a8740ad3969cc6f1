"""What follows from measured load: shards, blocks on them, deadlines, buffers."""
