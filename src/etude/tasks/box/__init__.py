"""Scripts that run inside a box with a bare Python, so they import nothing from Étude."""
