"""A key holder's work with keys and sums."""
