"""Messages in waves: all that is said to a party, and all that it says, in one batch each."""
