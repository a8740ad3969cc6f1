"""What makes a plan unsound: each check refuses with the reason."""
