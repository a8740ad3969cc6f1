"""What is done to an update on the device where it was trained, to the same bits as on the host."""
