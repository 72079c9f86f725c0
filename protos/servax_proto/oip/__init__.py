"""What the Open Inference Protocol speaks, as far as Servax does: wire-compatible, and no more.

The names are the protocol's own, so these modules cannot be loaded beside those of tritonclient,
kserve or mlserver in one process.
"""
