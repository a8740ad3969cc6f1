"""A data holder's script in a process of its own, and what is asked of it there."""
