"""A party's acts, for people who were not there: who, when, how many, at what cost."""
