"""The models of a root: versions that are written once, and the champion among them."""
