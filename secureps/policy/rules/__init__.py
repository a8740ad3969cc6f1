"""Rules decide when a cohort closes, of whose updates, and with which weights."""
