"""Attention whose cost follows the mask: masks that compose, and back ends that skip empty tiles."""
