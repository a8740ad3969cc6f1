"""Ciphers, identities and randomness: what keeps single updates from everybody."""
