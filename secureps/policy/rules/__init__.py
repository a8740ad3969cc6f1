"""Rules: when a cohort closes, of whose updates, with which weights."""
