"""Dimensions, shapes and specs: what people write of the sizes of their arguments."""
