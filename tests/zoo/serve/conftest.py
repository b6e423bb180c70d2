"""A served model, a real Chromium, from Debian's packages `chromium` and `chromium-driver`, and axe-core from npm."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.ensemble.conftest import folder, trained_ensemble  # noqa: F401 (fixtures)


@pytest.fixture
def live(folder: Path) -> Any:  # noqa: F811 (the fixture)
    """The served model of a small ensemble."""
    from zoo.serve.live_model import LiveModel

    return LiveModel(str(folder))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser without a window that logs its requests and what its console shows."""
    try:
        from selenium import webdriver

        programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
        assert all(programs), "apt-get install chromium chromium-driver"
    except (ImportError, AssertionError) as problem:
        if os.environ.get("ZOO_REQUIRE_BROWSER") == "1":
            pytest.fail(f"no Chromium: {problem}", pytrace=False)
        pytest.skip(f"no Chromium: {problem}")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    # Containers run as root, and have little shared memory.
    for option in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(programs[1]))
    yield browser
    browser.quit()


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """The source of axe-core, which is no part of this repository; None where npm cannot load it."""
    unpacked = tmp_path_factory.mktemp("axe")
    if shutil.which("npm") is None or subprocess.run(["npm", "pack", "axe-core@4"], cwd=unpacked).returncode:
        return None
    subprocess.run(["tar", "-xzf", next(unpacked.glob("*.tgz"))], cwd=unpacked, check=True)
    return (unpacked / "package" / "axe.min.js").read_text()
