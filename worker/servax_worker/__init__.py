"""The Servax worker: loads published versions and answers predictions over gRPC."""
