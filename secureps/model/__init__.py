"""What a model is on the aggregator: its layout, the placement of its blocks, its optimizers."""
