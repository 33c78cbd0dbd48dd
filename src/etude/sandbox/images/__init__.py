"""Images: layers named by their content, and where they come from.

A store of them, and importers."""
