"""Encodes updates as packed integers, and decodes their sums."""
