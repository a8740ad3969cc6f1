"""What an operator runs: the command line and the processes that it starts."""
