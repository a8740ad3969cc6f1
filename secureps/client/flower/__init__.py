"""Flower apps in a data holder's place; flwr is an extra."""
