"""etude sandbox doctor and etude sandbox fidelity: what this host supports, and how a sandbox differs from a login
shell."""

from __future__ import annotations

from etude.cli.errors import FAILED


def doctor_command(as_json: bool) -> int:
    from etude.sandbox import doctor

    findings = doctor.doctor()
    print(doctor.as_json(findings) if as_json else doctor.report(findings))
    return 0


def fidelity_command() -> int:
    from etude.sandbox import fidelity

    checks, differences = fidelity.fidelity()
    print(fidelity.report(checks, differences))
    return FAILED if any(not difference.check.differs for difference in differences) else 0
