"""The transport over gRPC."""
