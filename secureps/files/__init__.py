"""Files that a path or a URL names: objects at a store, and a plan's file of version 0."""
