"""The masks."""
