"""What is done on a device to updates, and to values that are stepped, to the bits of the host."""
