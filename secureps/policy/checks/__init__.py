"""Checks that refuse an unsound plan, each with its reason."""
