"""`secureps study`: compares rules over several seeds."""
