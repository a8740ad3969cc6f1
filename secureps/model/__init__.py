"""The model on the aggregator: its layout, the placement of its blocks, its optimizers."""
