"""TensorFlow Serving's protocol, over gRPC and over HTTP."""

from servax_worker.protocols.tfserving.rest import routes
from servax_worker.protocols.tfserving.servicer import add_to_server

__all__ = ["add_to_server", "routes"]
