"""Files of users: plans, scenarios, servers' settings; read, checked, and said what is wrong."""
