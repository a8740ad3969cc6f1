"""`secureps up`: plays a whole federation of processes on this machine."""
