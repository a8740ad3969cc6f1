"""`secureps up`: a whole federation of processes on this machine."""
