"""The four parties as machines without I/O, and what they share."""
