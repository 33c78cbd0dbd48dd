"""Images: layers that are named by a digest of their content, the store that keeps them, and the importers that make
them."""
