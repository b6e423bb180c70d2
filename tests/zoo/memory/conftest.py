"""Fixtures of small ensembles, shared with the tests of the ensemble."""

from tests.zoo.ensemble.conftest import folder, run, shared_run, trained_ensemble  # noqa: F401 (fixtures)
