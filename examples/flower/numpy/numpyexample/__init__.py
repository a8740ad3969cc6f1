"""numpyexample."""
