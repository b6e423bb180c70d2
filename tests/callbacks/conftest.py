"""What tests of callbacks share with those of models: a run is what is watched."""

from tests.zoo.conftest import (  # noqa: F401 (fixtures)
    _one_thread,
    _own_world,
    _wandb_offline,
    fit,
    train_csv,
    zoo_command,
)
