"""What follows from a plan: groups, rules, cohorts, checks, and what is explained of it."""
