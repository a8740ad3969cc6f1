"""secureps: a parameter server for training on data that may not leave its owner."""

__version__ = "0.1.0"
