"""How messages cross the network: MessagePack, and the transports."""
