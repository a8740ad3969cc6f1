"""`secureps simulate`: a whole federation in one process, in virtual time."""
