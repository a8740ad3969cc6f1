"""How messages cross the network: protobuf, and the transports."""
