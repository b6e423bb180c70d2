"""The examples run as their pages show them."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[3] / "examples"


def imported(file: Path) -> Any:
    """The module of a script, which registers its classes."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python_blocks(page: str) -> list[str]:
    """The Python code on the page of a folder of examples."""
    text = (EXAMPLES / page / "README.md").read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def framework_code(framework: str, model: str, folder: Path) -> str:
    """The code of the page on shards for a framework, with a folder in place of the one that machines share."""
    imports = re.compile(rf"^(import|from) {framework}", re.MULTILINE)
    (code,) = filter(imports.search, python_blocks("sharding"))
    return code.replace("/shared/model", model).replace("/shared", str(folder))
