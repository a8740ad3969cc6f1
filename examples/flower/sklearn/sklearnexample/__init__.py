"""sklearnexample."""
