"""What is done to an update for privacy, and the account of what was spent."""
