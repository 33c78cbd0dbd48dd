"""Dockerfiles built without Docker: each RUN in a box, under a named egress policy, cached by content.

`build_image`, and `refuse_side_cars` for what comes with a compose file."""

from etude.sandbox.images.build.build import BUILD_LIMITS, build_image, try_build
from etude.sandbox.images.build.compose import refuse_side_cars

__all__ = ["BUILD_LIMITS", "build_image", "refuse_side_cars", "try_build"]
