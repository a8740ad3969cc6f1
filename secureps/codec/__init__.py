"""From updates to packed integers and back."""
