"""Every measured figure of the pages has a command next to it, which exists; and the comparison finds what differs."""

import shlex
from pathlib import Path

import pytest

from tests.figures import PAGES, ROOT, figures_of, minutes_of, report
from zoo.reproduce.table import load_table

PAGE = """# Figures

| row | accuracy |
|---|---|
| without a command | 50.0 |

## With commands

```
zoo reproduce wikiqa --data_dir data --rows BM25  # 1 minute; at a commit
zoo reproduce wikiqa --data_dir data  # 2 hours
```

| row | MAP | the paper |
|---|---|---|
| BM25 | 56.2 | 1.0 |
| random order | **41.1** ± 0.5 | |

Both are 8.8 points above; `0.1` in code and a server 8.19 are no figures.

A server 8.19.
"""
OUTPUT = """| row | validation MAP | P@1 | runs |
| --- | ---: | ---: | ---: |
| BM25 | 56.2 | 57.0 | 1 |
| random order | 41.4 ± 0.3 | 41.1 | 1 |
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_measured_figure_has_a_command_that_exists(page: Path) -> None:
    figures = list(figures_of(page))
    assert [figure.place for figure in figures if not figure.commands] == []
    for command in {each for figure in figures for each in figure.commands}:
        words = shlex.split(command.splitlines()[-1], comments=True)
        if words[:2] == ["zoo", "reproduce"]:
            name = str(ROOT / words[2]) if words[2].endswith(".yaml") else words[2]
            rows = words[words.index("--rows") + 1].split(",") if "--rows" in words else []
            assert {row.strip() for row in rows} <= set(load_table(name).rows), command
        elif words[:2] == ["python", "-m"]:
            source = (ROOT / words[2].replace(".", "/")).with_suffix(".py").read_text()
            options = [word for word in words if word.startswith("--")]
            assert [option for option in options if f'"{option}"' not in source] == [], command


def test_pages_are_read_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "README.md"
    page.write_text(PAGE)
    alone, table, text = figures_of(page)
    assert alone.place.endswith("README.md:3")
    assert alone.commands == ()
    short, long = table.commands
    assert table.place.endswith("README.md:14")
    assert text.commands == table.commands
    assert (minutes_of(short), minutes_of(long)) == (1, 120)
    assert report([table], {short: OUTPUT}) == 1
    printed = capsys.readouterr().out
    assert "README.md:14: as stated: bm25: stated 56.2, measured 56.2" in printed
    assert "README.md:14: DEFECT: random order: stated 41.1, measured 41.4" in printed
    assert report([alone], {}) == 1
    assert report([table], {short: ""}) == 1  # it failed
    assert report([table], {short: "| row | MAP |\n| --- | --- |\n| other | 1.0 |\n"}) == 1
    assert report([table], {}) == 0
