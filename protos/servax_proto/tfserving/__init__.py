"""What TensorFlow Serving speaks, as far as Servax does: wire-compatible, and no more than that.

The names are TensorFlow's own, so these modules cannot be loaded beside tensorflow-serving-api or
TensorFlow in one process.
"""
