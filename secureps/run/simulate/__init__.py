"""`secureps simulate`: plays a whole federation in one process, in virtual time."""
