"""What a plan means, in words and numbers, for `secureps check`."""
