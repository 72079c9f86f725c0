"""What the registry keeps, in one SQL database."""
