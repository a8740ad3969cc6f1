"""A key holder: helps to open sums of cohorts, by its own ledger."""
