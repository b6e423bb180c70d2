"""Every benchmark script can be imported, and that of GPUs runs at toy size, without a GPU."""

from importlib import import_module
from pathlib import Path

import pytest

from tests.benchmarks.gpu import main


def test_every_script_can_be_imported() -> None:
    scripts = {path.stem for path in Path(__file__).parent.glob("*.py")}
    for script in scripts - {"__init__", "timing", "test_scripts"}:
        assert callable(import_module(f"tests.benchmarks.{script}").main)


@pytest.mark.slow
def test_the_table_of_gpus_has_a_row_for_each_model_and_variant(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--models", "HMN", "ExpaNet", "--variants", "bf16", "fp32", "--steps", "2", "--rows", "100"])
    table = [line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [[cell.strip() for cell in line[1:3]] for line in table[2:]] == [
        [model, variant] for model in ("HMN", "ExpaNet") for variant in ("bf16", "fp32")
    ]
    assert all(float(line[3].replace(",", "")) > 0 for line in table[2:])
