"""Benchmarks are scripts: what they import lies beside them."""

from __future__ import annotations

import sys
from pathlib import Path

CLAIMS = Path(__file__).resolve().parents[2] / "benchmarks" / "claims"
sys.path[:0] = [place for place in (str(CLAIMS), str(CLAIMS.parent)) if place not in sys.path]
