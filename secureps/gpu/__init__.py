"""What runs on a graphics processor, where there is one: the same bits as on any processor."""
