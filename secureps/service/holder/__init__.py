"""Workers of key holders: they use the secret keys, and open or unmask sums."""
