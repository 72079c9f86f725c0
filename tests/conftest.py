"""What holds for every test."""

import os

# Registries that tests start as processes would otherwise compile what is pushed to them.
os.environ["SERVAX_REGISTRY_TRIALS"] = "0"
