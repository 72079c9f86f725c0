"""What an operator does with a registry's storage, served or not: commands of servax-registry."""
