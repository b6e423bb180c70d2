"""`zoo measure`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.zoo.conftest import Zoo, refusal


def test_a_line_of_names_is_no_query(zoo_command: Zoo) -> None:
    """As in BEIR's files; the same judgements without it have the same figures."""
    lines = ["q1\td1\t1", "q1\td2\t0", "q2\td2\t1", "q3\td1\t0"]
    Path("run.txt").write_text("q1 Q0 d1 1 2.0 x\nq2 Q0 d1 1 2.0 x\nq2 Q0 d2 2 1.0 x\n")
    outputs = []
    for name, first in {"plain.tsv": [], "beir.tsv": ["query-id\tcorpus-id\tscore"]}.items():
        Path(name).write_text("\n".join([*first, *lines]) + "\n")
        result = zoo_command("measure", "--judgements", name, "--runs=[run.txt]")
        assert result.code == 0, result.err
        outputs.append(result.out)
    assert outputs[0] == outputs[1]
    assert outputs[0].splitlines()[-1].startswith("2 queries with a relevant document")
    Path("none.tsv").write_text("q1\td1\t0\n")
    refused = zoo_command("measure", "--judgements", "none.tsv", "--runs=[run.txt]")
    refusal(refused, "none.tsv", "no query has a relevant document")


def test_names_of_files_are_shown_escaped(zoo_command: Zoo) -> None:
    Path("qrels.tsv").write_text("q1\td1\t1\n")
    name = "run\x1b[31m.txt"
    for file in (name, "b.txt"):
        Path(file).write_text("q1 Q0 d1 1 2.0 x\n")
    result = zoo_command("measure", "--judgements=qrels.tsv", f"--runs={json.dumps([name, 'b.txt'])}")
    assert result.code == 0, result.err
    assert "\x1b" not in result.out
    assert result.out.count("run\\u001b[31m.txt") == 2
