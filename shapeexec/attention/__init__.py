"""Attention whose cost follows the mask: masks compose, and back ends skip empty tiles."""
