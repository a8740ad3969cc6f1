"""The coordinator: decides on receipts, never on payloads."""
