"""Runs unmodified Flower apps as a client's trainer; flwr is an extra."""
