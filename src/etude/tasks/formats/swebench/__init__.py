"""SWE-bench: imports instances, reads and writes predictions, writes reports.

Read rows.py, instance.py and importing.py in this order. grading.py can be read alone.
"""

from etude.tasks.formats.swebench.grading import Graded, grade_predictions, make_report, read_graded
from etude.tasks.formats.swebench.importing import import_rows
from etude.tasks.formats.swebench.instance import UnsupportedRow, Variant, instance_of
from etude.tasks.formats.swebench.predictions import Prediction, export_predictions, predictions_of, read_predictions
from etude.tasks.formats.swebench.rows import Row, read_rows

__all__ = [
    "Graded",
    "Prediction",
    "Row",
    "UnsupportedRow",
    "Variant",
    "export_predictions",
    "grade_predictions",
    "import_rows",
    "instance_of",
    "make_report",
    "predictions_of",
    "read_graded",
    "read_predictions",
    "read_rows",
]
