"""Which files of a workspace are none of a solution's business, in any language and at any depth."""

from __future__ import annotations

import pytest

from etude.tasks.protected_files import is_protected

SURFACE = """
    check.py  conftest.py  test_prices.py  prices_test.py  sitecustomize.py  own.pth  prices.pyc
    pytest.ini  .pytest.ini  pytest.toml  tox.ini  setup.cfg  pyproject.toml  .coveragerc
    cart.test.ts  cart.spec.mjs  jest.config.js  vitest.config.mts  karma.conf.js  .mocharc.yml  .npmrc  package.json
    Makefile  makefile  GNUmakefile  poetry.lock  Cargo.lock  package-lock.json  npm-shrinkwrap.json  pnpm-lock.yaml
    cart_test.go  tests/data.txt  __mocks__/fs.js  __snapshots__/a.snap  fixtures/a.json  .git/config  .gitattributes
"""
PRODUCT = "prices.py  contest.py  checks.py  makefiles.py  latest.ts  jest.py  src/config.ts  attest/a.py  testing.md"


@pytest.mark.parametrize("path", SURFACE.split())
def test_what_decides_how_tests_run_is_reset(path: str) -> None:
    assert is_protected(path)
    assert is_protected(f"a/b/{path}")


@pytest.mark.parametrize("path", PRODUCT.split())
def test_product_code_is_not(path: str) -> None:
    assert not is_protected(path)
