"""Scripts that run inside a box with nothing but a bare Python: they import no part of Étude."""
