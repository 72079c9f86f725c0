"""Trains, exports, publishes, serves and calls real models: `python -m examples.demo`."""
