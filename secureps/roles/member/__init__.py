"""A member: one client of a federation."""
