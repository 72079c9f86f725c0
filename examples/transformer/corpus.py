"""The text that the transformer learns: Python's own language reference."""

import pydoc_data.topics

import numpy as np
from numpy.typing import NDArray


def load() -> NDArray[np.uint8]:
    """Return what `help()` prints for its topics, as uint8[n] bytes of UTF-8; about 470 KB."""
    topics: dict[str, str] = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics))
    return np.frombuffer(text.encode(), np.uint8)
