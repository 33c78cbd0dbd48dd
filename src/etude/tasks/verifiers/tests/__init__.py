"""The verifier of hidden test suites: `type = "tests"`.

A suite runs in a fresh box, mixed with negative controls: altered copies of its tests, which must fail. The run's exit
code, its result rows and its final report must agree.
"""

from etude.tasks.verifiers.tests.exam import Exam, plain_exam
from etude.tasks.verifiers.tests.judging import judge_run
from etude.tasks.verifiers.tests.packages import pytest_files
from etude.tasks.verifiers.tests.run_output import RunOutput
from etude.tasks.verifiers.tests.running import run_exam
from etude.tasks.verifiers.tests.suite import Suite, SuiteConfig, read_suite, suite_files
from etude.tasks.verifiers.tests.verifier import TestsVerifier

__all__ = [
    "Exam",
    "RunOutput",
    "Suite",
    "SuiteConfig",
    "TestsVerifier",
    "judge_run",
    "plain_exam",
    "pytest_files",
    "read_suite",
    "run_exam",
    "suite_files",
]
