"""The generated modules of the API in protos/."""
