"""A run in a browser: what is seen of it, by whom, and the small application that shows it."""
