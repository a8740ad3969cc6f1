"""Starts, watches, restarts and ends processes of this machine together."""
