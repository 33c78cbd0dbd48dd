"""Images: layers named by their content, the store that keeps them, and the importers that make them."""
