"""What a party did, for people who ask and were not there: who, when, how many, at what cost."""
