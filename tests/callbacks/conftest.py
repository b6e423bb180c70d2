"""Fixtures of small runs, shared with the tests of models."""

from tests.zoo.conftest import (  # noqa: F401 (fixtures)
    _own_checkout,
    _own_world,
    _wandb_offline,
    fit,
    train_csv,
    zoo_command,
)
