"""The client: trains on its own records, seals its updates, and pulls the model."""
