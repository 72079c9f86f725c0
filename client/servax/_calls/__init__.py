"""The I/O-free halves of every call, shared by both clients."""
