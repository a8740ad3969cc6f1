"""Processes of this machine: started, watched, restarted and ended together."""
