"""Every configuration of the examples names options that exist."""

import pytest
import yaml

from tests.zoo.conftest import Zoo, done
from tests.zoo.examples import EXAMPLES
from zoo.runs.configs import find, names

#: A configuration of W&B, not of a run.
SWEEP = EXAMPLES / "logger" / "sweep.yaml"
CONFIGURATIONS = [*map(str, names()), str(EXAMPLES / "demo" / "demo.yaml")]


def test_the_sweep(zoo_command: Zoo) -> None:
    sweep = yaml.safe_load(SWEEP.read_text())
    values = {name: facts.get("values", [facts.get("min")])[0] for name, facts in sweep["parameters"].items()}
    command = [word for word in sweep["command"] if word != "${args}"]
    assert command[:2] == ["zoo", "fit"]
    options = [f"--{name}={value}" for name, value in values.items()]
    done(zoo_command("fit", *command[2:], *options, "--print_config"))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_has_its_effect(name: str, zoo_command: Zoo) -> None:
    result = done(zoo_command("fit", "--config=knn_bilstm/ag_news", "--config", name, "--print_config"))
    check(yaml.safe_load(find(name).read_text()), yaml.safe_load(result.out))


def check(given: object, printed: object) -> None:
    """Compare a configuration with the printed one, which has long class names and defaults."""
    if isinstance(given, dict):
        assert isinstance(printed, dict)
        for key, value in given.items():
            check(value, printed[key.removesuffix("+")])
    elif isinstance(given, list):
        assert isinstance(printed, list)
        for value, other in zip(given, printed, strict=True):
            check(value, other)
    elif isinstance(given, str) and isinstance(printed, dict):
        assert printed["class_path"].endswith(given)
    elif isinstance(given, str):
        assert isinstance(printed, str)
        assert printed.endswith(given)
    else:
        assert printed == given
