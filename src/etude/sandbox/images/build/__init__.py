"""Builds Dockerfiles without Docker: each RUN runs in a box under a named egress policy, and build steps are cached by
their content.

Public: `build_image`, `try_build`, and `refuse_side_cars`, which rejects folders with a compose file.
"""

from etude.sandbox.images.build.build import build_image, refuse_side_cars, try_build

__all__ = ["build_image", "refuse_side_cars", "try_build"]
