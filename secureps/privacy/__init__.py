"""Clips and noises updates for privacy, and accounts for what they spend."""
