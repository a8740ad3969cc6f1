"""What this project costs, measured side by side with others; see README.md."""
