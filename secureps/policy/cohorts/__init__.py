"""What a cohort must be before its sum is opened, and who may follow one that was not."""
