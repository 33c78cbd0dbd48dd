"""The doctor's findings as a table and a picture, whatever they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etude.view.numerics import draw_numerics, numerics_table

FORMATS = ("bf16", "nvfp4", "nvfp4_tensor", "mxfp8", "fp8_block")
WAYS = ("64 at a time", "one by one", "sampled")


def spread(mean: float) -> dict[str, float]:
    return {"mean": mean, "p99": 2 * mean, "max": 3 * mean}


def layer(number: int, error: float, *, routed: bool = True) -> dict[str, Any]:
    found = {"layer": number, "residual": spread(error), "experts": None, "weights": None, "flips": None}
    return found | ({"experts": spread(2 * error), "weights": spread(error), "flips": error / 10} if routed else {})


def of_format(name: str, error: float) -> dict[str, Any]:
    said = {"tokens": 90, "logprobs": spread(error), "k3": error**2, "flips": [0.0, error / 4]}
    return {"name": name, "layers": [layer(0, 0.0, routed=False), layer(1, error)], "engine": dict.fromkeys(WAYS, said)}


def findings(*formats: dict[str, Any]) -> dict[str, Any]:
    run = {"run": "runs/tiny", "stage": "rl", "own": "bf16", "dtype": "bfloat16", "sequences": 2, "tokens": 92}
    return run | {"formats": list(formats), "left_out": {}, "faults": [], "doubts": [], "blessed": True}


def test_the_table_has_a_row_for_each_layer_and_each_way() -> None:
    lines = numerics_table(findings(of_format("nvfp4", 0.125))).splitlines()
    assert lines[:2] == [
        "runs/tiny, rl: trained in bf16, computes in bfloat16",
        "2 held-out demonstrations, 92 tokens",
    ]
    rows = [line.split() for line in lines if line.startswith("nvfp4")]
    assert rows == [
        ["nvfp4", "0", "0", "0", "0"],
        ["nvfp4", "1", "0.25", "0.5", "0.75", "0.12", "0.25", "0.38", "0.12", "1.25%"],
        *(["nvfp4", *way.split(), "90", "0.12", "0.25", "0.38", "0.016", "3.12%"] for way in WAYS),
    ]
    assert len({len(line) for line in lines[3:6]}) == 1, "columns are aligned"
    assert lines[-1] == "blessed"


def test_what_was_left_out_and_what_is_wrong_are_told() -> None:
    found = findings() | {"left_out": {"mxfp8": "24 is no multiple of 32"}, "blessed": False}
    found["faults"] = [{"where": "w", "problem": "has 1 of 8 numbers that are not finite"}]
    assert numerics_table(found).splitlines() == [
        "runs/tiny, rl: trained in bf16, computes in bfloat16",
        "left out: mxfp8: 24 is no multiple of 32",
        "w has 1 of 8 numbers that are not finite",
        "",
        "not blessed",
    ]


def test_the_picture_shows_many_formats_and_a_network_without_experts_or_errors(tmp_path: Path) -> None:
    dense = of_format("bf16", 0.0)
    dense["layers"] = [layer(0, 0.0, routed=False)]
    dense["engine"] = {way: said | {"flips": []} for way, said in dense["engine"].items()}
    for name, found in (("one", findings(dense)), ("all", findings(*(of_format(name, 0.1) for name in FORMATS)))):
        file = tmp_path / "new" / f"{name}.png"
        draw_numerics(found, file)
        assert file.read_bytes().startswith(b"\x89PNG")
    assert numerics_table(findings(dense)).count("0.00%") == 3
