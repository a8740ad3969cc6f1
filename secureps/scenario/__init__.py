"""Data, delays and links of simulated clients."""
