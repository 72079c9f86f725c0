"""Version 1 of the API, wire package servax.v1."""
