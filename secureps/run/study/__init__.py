"""`secureps study`: rules compared over several seeds."""
