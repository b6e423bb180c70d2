"""Attacks by the models of strangers: each changes an exported folder, a checkpoint or a memory, with right checksums.

A case changes a copy, and then runs the commands of a user who received it. Harm is: code of the stranger that runs, a
private file that is read, written, deleted or published, a request to the stranger's server, a control character that
is shown.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from datamodules.core.errors import InputError
from datamodules.core.storage import MANIFEST, checksum_of, partial_file, read_checked, with_checksum
from datamodules.retrieval import load_all_retrievers
from zoo.cli import main

#: In every private file.
SECRET = "the private words of the victim"
KEY = "a2V5LW9mLXRoZS12aWN0aW0="
Kind = Literal["exported", "checkpoint", "memory"]
ESCAPE = "\x1b]0;owned\x07\x9b2J"

#: What the commands import. A case that finds it imported takes 1 s in place of 6.
_COMMANDS = (
    "transformers", "safetensors.torch", "zoo.cli.lightning", "zoo.search.search", "zoo.cli.models", "zoo.cli.predict",
    "zoo.cli.runs", "zoo.memory.commands", "zoo.saving.export", "zoo.knn_bilstm",
)  # fmt: skip


def import_commands() -> None:
    """Import what the commands need, before the processes of the cases are forked."""
    for module in _COMMANDS:
        import_module(module)
    load_all_retrievers()


class World:
    """A folder with private files, a model of a stranger, and modules that leave a trace if they are imported."""

    def __init__(self, whole: Path, work: Path, kind: Kind, url: str) -> None:
        self.work, self.kind, self.url = work, kind, url
        self.private, self.model = work / "private", work / "model"
        work.mkdir()
        for name in ("texts.txt", "more.csv", "test.csv"):
            shutil.copy(whole / name, work / name)
        shutil.copytree(whole / "exported" / "memory", self.private / "memory")
        (self.private / "secret.txt").write_text(SECRET)
        (self.private / "table.csv").write_text(f"text,label\n{SECRET},fruit\n")
        os.mkfifo(self.private / "pipe")
        (self.private / "model").mkdir()
        (self.private / "model" / "config.json").write_text('{"model_type": "bert"}')
        shutil.copy(whole / "run" / "checkpoints" / "best.ckpt", self.private / "model.ckpt")
        trace = f"open({str(work / 'OWNED')!r}, 'w').close()\n"
        classes = "".join(f"class {name}:\n    pass\n" for name in ("Evil", "KNNBiLSTM", "EmbeddedRetriever"))
        (work / "evil.py").write_text(trace + classes)
        (work / "repository").mkdir()
        (work / "repository" / "evil.py").write_text(trace + classes)
        (work / "repository" / "config.json").write_text('{"model_type": "bert"}')
        if kind == "exported":
            shutil.copytree(whole / "exported", self.model)
        elif kind == "memory":
            shutil.copytree(whole / "exported", work / "good")
            shutil.copytree(whole / "exported" / "memory", self.model)
        else:
            shutil.copytree(whole / "run", self.model)
            shutil.copytree(whole / "exported" / "memory", self.model / "memory")
            file = self.model / "checkpoints" / "best.ckpt"
            contents = torch.load(file, weights_only=True)
            contents["memory_zoo"].pop("signature", None)
            file.unlink()
            torch.save(contents, file)

    def text(self, value: Any) -> Any:
        """Replace the names of places in a value."""
        if isinstance(value, dict):
            return {self.text(name): self.text(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.text(item) for item in value]
        if not isinstance(value, str):
            return value
        places = {
            "PRIVATE": self.private,
            "MODEL": self.model,
            "WORK": self.work,
            "SERVER": self.url,
            "LOGIN": self.url.replace("//", "//stranger:password@"),
        }
        return re.sub("|".join(places), lambda match: str(places[match[0]]), value)

    def put(self, place: str, value: Any) -> None:
        """Set a part of the model's configuration: keys with slashes between them."""
        with self.configuration() as contents:
            *outer, last = place.split("/")
            for name in outer:
                contents = contents.setdefault(name, {})
            contents[last] = self.text(value)

    @contextmanager
    def configuration(self) -> Iterator[dict[str, Any]]:
        """The configuration of an exported model or a checkpoint, to change."""
        if self.kind == "exported":
            file = self.model / "config.json"
            contents = json.loads(file.read_text())
            yield contents
            file.write_text(json.dumps(contents))
            self.seal(self.model)
            return
        file = self.model / "checkpoints" / "best.ckpt"
        contents = torch.load(file, weights_only=True)
        yield contents
        torch.save(contents, file)

    @contextmanager
    def manifest(self, folder: Path) -> Iterator[dict[str, Any]]:
        """A manifest to change."""
        yield from self._checked(folder / MANIFEST)

    @contextmanager
    def pointer(self) -> Iterator[dict[str, Any]]:
        """The pointer of a memory to change."""
        yield from self._checked(self.memory / "memory.json")

    @staticmethod
    def _checked(file: Path) -> Iterator[dict[str, Any]]:
        values = read_checked(file, "")
        yield values
        file.write_text(json.dumps(with_checksum(values)))

    def seal(self, folder: Path) -> None:
        """Write the right sizes and checksums into a manifest."""
        with self.manifest(folder) as manifest:
            for name in manifest["files"]:
                file = folder / name
                manifest["files"][name] = {"bytes": file.stat().st_size, "xxh3": checksum_of(file)}

    @property
    def memory(self) -> Path:
        """The folder of the model's memory."""
        return self.model if self.kind == "memory" else self.model / "memory"

    def part(self, pattern: str) -> Path:
        """A part of the memory."""
        return sorted(self.memory.glob(pattern))[0]

    def replace(self, path: Path, target: str) -> None:
        """Put a link in the place of a file or folder."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.symlink_to(self.text(target))

    def commands(self) -> list[list[object]]:
        """What a user does with a model, or a memory, of others."""
        if self.kind == "memory":
            return [
                ["search", "apple rain", "--memory", self.model],
                ["memory", "show", self.model],
                ["predict", "--ckpt_path", "good", "--input", "texts.txt", "--memory", self.model],
                ["memory", "add", self.model, "more.csv"],
                ["search", "apple rain", "--memory", self.model],
            ]
        return [
            ["predict", "--ckpt_path", self.model, "--input", "texts.txt"],
            ["memory", "show", self.model],
            ["test", "--ckpt_path", self.model, "--data.test_file=test.csv", "--output=scores.json"],
            ["validate", "--ckpt_path", self.model, "--data.validation_file=test.csv"],
            ["export", self.model, "published"],
            ["memory", "add", self.model, "more.csv"],
        ]

    def outside(self) -> dict[str, bytes | None]:
        """The contents of everything outside of the model, without what the commands write on purpose."""
        written = {self.model, self.work / "cache", self.work / "published", self.work / "good"}
        found: dict[str, bytes | None] = {}
        for folder, folders, files in os.walk(self.work):
            folders[:] = [name for name in folders if Path(folder, name) not in written]
            for name in files:
                file = Path(folder, name)
                if name not in ("scores.json", ".model.lock", ".published.lock", "key", ".key.lock"):
                    found[str(file.relative_to(self.work))] = file.read_bytes() if file.is_file() else None
        return found


class Attack(NamedTuple):
    """One manipulation."""

    name: str
    kind: Kind
    change: Callable[[World], None]


def _puts() -> Iterator[tuple[str, Any]]:
    """Places in a configuration, and what a stranger puts there."""
    data, memory, retriever = "memory_zoo/data", "memory_zoo/data/memory", "memory_zoo/data/retriever"
    # Code that runs.
    maps = [
        {"AutoModel": "WORK/repository--evil.Evil"},
        {"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil"},
        {"AutoModel": ["WORK/repository--evil.Evil", None]},
    ]
    for auto_map in maps:
        yield "transformer", {"model_type": "bert", "auto_map": auto_map, "_name_or_path": "WORK/repository"}
    for extra in (
        {"attn_implementation": "stranger/kernel"},
        {"_attn_implementation": "stranger/kernel"},
        {"quantization_config": {"quant_method": "evil"}},
        {"model_type": "evil"},
        {"sentence_modules": {"dense": [["x", 4, 4, True, "evil.Evil"]]}},
    ):
        yield "transformer", {"model_type": "bert", **extra}
    # Names of classes.
    for name in ("evil.Evil", "evil.KNNBiLSTM", "evil", "os.system", "WORK/evil.py", "", None, 3, ["evil"]):
        yield "memory_zoo/model", name
        yield f"{data}/kind", name
    for name in (
        "evil.Evil",
        "evil.EmbeddedRetriever",
        "builtins.exec",
        "",
        None,
        {"class_path": "evil.Evil"},
    ):
        yield f"{retriever}/class_path", name
    evil = {"class_path": "evil.Evil", "init_args": {}}
    yield f"{retriever}/init_args/similarity", evil
    yield f"{retriever}/init_args/similarity.class_path", "evil.Evil"
    yield (
        retriever,
        {"class_path": "FusedRetriever", "init_args": {"retrievers": [evil, evil]}},
    )
    yield retriever, "evil.Evil"
    for option in ("optimizer", "lr_scheduler", "optimizer.class_path", "hidden_size", "new"):
        yield f"hyper_parameters/{option}", evil
        yield f"hyper_parameters/{option}", "evil.Evil"
    yield f"{data}/options/retriever", evil
    yield f"{data}/options/retriever.class_path", "evil.Evil"
    yield f"{data}/options/tokenizer", "WORK/repository"
    # Files elsewhere.
    for path in ("PRIVATE/memory", "../private/memory", "memory/../../private/memory", "/dev/zero", "PRIVATE/pipe",
                 "", ".", "~", "new/folder", "PRIVATE/new", "index:../x", "index:", "mem\0ory", 7, None):  # fmt: skip
        yield memory, {"path": path, "rows": None, "version": 1, "ranking": None}
    for rows in (["PRIVATE", "0"], ["/dev", "zero"], ["PRIVATE/memory/version-1", "0"], ["x"], "x", {}):
        yield memory, {"path": "memory", "rows": rows, "version": 1, "ranking": {}}
        yield memory, {"path": "PRIVATE/new", "rows": rows, "version": 1, "ranking": {}}
    for option in ("train_file", "validation_file", "test_file", "memory", "class_names", "word_vectors"):
        for path in ("PRIVATE/pipe", "PRIVATE/table.csv", "/dev/zero", "/"):
            yield f"{data}/options/{option}", path
    for path in ("PRIVATE", "PRIVATE/secret.txt", "/dev/null", "new"):
        yield f"{data}/options/cache_dir", path
    yield f"{data}/files", {"train_file": "PRIVATE/pipe"}
    # Other models.
    for path in _MODELS:
        yield f"{data}/options/tokenizer", path
        yield "hyper_parameters/transformer", path
        yield "hyper_parameters/init_from", path
        for described in _dense(path):
            yield retriever, described
    # Texts and keys.
    for client_args in (None, {"verify_certs": False}, {"sniff_on_start": True}, {"headers": {"a": "b"}}):
        for kind in ("ElasticsearchRetriever", "ElasticsearchDenseRetriever"):
            described = {"url": "SERVER", "client_args": client_args}
            if kind == "ElasticsearchDenseRetriever":
                described["encoder"] = "WORK/repository"
            yield retriever, {"class_path": kind, "init_args": described}
    index = {"url": "SERVER", "index": "texts"}
    yield retriever, {"class_path": "ElasticsearchRetriever", "init_args": index}
    for url in ("SERVER/", "LOGIN", "LOGIN/", ["SERVER"], ["http://localhost:9200", "SERVER"], "", 7, None):
        yield retriever, {"class_path": "ElasticsearchRetriever", "init_args": {"url": url}}
    # Wrong types.
    for kind, options in _OPTIONS.items():
        for name, value in itertools.product(options, ([], "x", 1e300)):
            yield retriever, {"class_path": kind, "init_args": {"encoder": "WORK/repository", name: value}
                              if "encoder" in options else {name: value}}  # fmt: skip
    # The terminal.
    for place in (
        "memory_zoo/model",
        f"{data}/kind",
        f"{data}/options/train_file",
        f"hyper_parameters/{ESCAPE}",
    ):
        yield place, ESCAPE
    yield "memory_zoo/spec/labels", [ESCAPE, "metal", "weather"]
    yield "memory_zoo/spec/labels", ["fruit` <script> `", "metal\n# owned", "weather"]
    # Shapes that nobody expects.
    for place in ("memory_zoo", data, f"{data}/options", retriever, memory, "memory_zoo/spec", "hyper_parameters",
                  f"{data}/facts", f"{data}/seen", "memory_zoo/fitted_weights"):  # fmt: skip
        for value in (None, [], "x", 1e300, {"": {}}):
            yield place, value


#: Names of models that a stranger does not have: in a folder of the victim, and no models at all.
_MODELS = ("PRIVATE/model", "PRIVATE/model.ckpt", "private/model", "../private/model", "MODEL/../private/model",
           "PRIVATE/pipe", "/dev/zero", "~", ".", "", "a\0b", "x" * 5000, 7, None)  # fmt: skip


#: Options of retrievers.
_OPTIONS = {
    "EmbeddedRetriever": ("similarity", "analyzer", "k1", "b", "mu", "threads"),
    "DenseRetriever": ("encoder", "pooling", "batch_size", "max_length", "device", "query_prompt"),
    "FusedRetriever": ("retrievers", "method", "weights", "depth", "rank_constant"),
}


def _dense(encoder: object) -> list[dict[str, Any]]:
    """Descriptions of retrievers with an encoder."""
    dense = {"class_path": "DenseRetriever", "init_args": {"encoder": encoder}}
    return [dense, {"class_path": "FusedRetriever", "init_args": {"retrievers": [dense, dense]}}]


def _put(place: str, value: Any) -> Callable[[World], None]:
    if place != "transformer":
        return lambda world: world.put(place, value)

    def change(world: World) -> None:
        world.put("hyper_parameters/transformer", "WORK/repository")
        world.put("memory_zoo/transformer_config", value)

    return change


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _links() -> Iterator[tuple[str, Callable[[World], None]]]:
    """Links, pipes and names in the files of a memory."""
    parts = {
        "the memory": lambda world: world.memory,
        "its rows": lambda world: world.memory / "version-1",
        "its index": lambda world: world.part("version-1/index-*"),
        "a file of its rows": lambda world: world.memory / "version-1" / "rows-1-0.arrow",
        "its pointer": lambda world: world.memory / "memory.json",
        "the manifest of its rows": lambda world: world.memory / "version-1" / MANIFEST,
        "the manifest of its index": lambda world: world.part("version-1/index-*") / MANIFEST,
        "its lock": lambda world: world.memory.with_name(f".{world.memory.name}.lock"),
        "the lock of its index": lambda world: _lock_of(world.part("version-1/index-*")),
        "the next rows": lambda world: world.memory / "version-2",
        "the unfinished rows": lambda world: world.memory / ".version-2.partial",
        "a new file": lambda world: world.memory / "id_rsa",
        "its encodings": lambda world: world.memory / "vectors-0123456789abcdef",
        "the unfinished pointer": lambda world: partial_file(world.memory / "memory.json"),
    }  # fmt: skip
    for name, part in parts.items():
        for target in ("PRIVATE/secret.txt", "PRIVATE", "PRIVATE/pipe", "/dev/zero", "PRIVATE/absent"):
            yield (
                f"{name} is a link to {target}",
                lambda world, part=part, to=target: world.replace(part(world), to),
            )
        yield f"{name} is a pipe", lambda world, part=part: _make_pipe(part(world))
    names = (
        "../../private/secret.txt",
        "PRIVATE/secret.txt",
        "/dev/zero",
        "..",
        ".",
        "",
        "a\0b",
        "x" * 5000,
        ESCAPE,
    )
    for name in names:
        yield f"a manifest names {name[:30]!r}", lambda world, name=name: _name_file(world, world.text(name))
    for key in ("fingerprint", "files", "rows"):
        for value in (None, [], "x", -1, {"x": None}, {"x": {}}):
            yield (
                f"{key} of a manifest is {value!r}",
                lambda world, key=key, value=value: _put_fact(world, key, value),
            )
    for key in ("version", "retriever", "ranking"):
        for value in (None, [], "x", -1, 10**9, {}, {"class_path": "evil.Evil", "init_args": {}},
                      {"class_path": "ElasticsearchRetriever", "init_args": {"url": "SERVER"}},
                      {"class_path": "ElasticsearchRetriever", "init_args": {"url": "LOGIN/"}},
                      *_dense("PRIVATE/model"), *_dense("PRIVATE/model.ckpt"), *_dense("private/model")):  # fmt: skip
            yield (
                f"{key} of a memory is {value!r}",
                lambda world, key=key, value=value: _put_pointer(world, key, value),
            )


def _make_pipe(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _name_file(world: World, name: str) -> None:
    with world.manifest(world.memory / "version-1") as manifest:
        manifest["files"][name] = {"bytes": len(SECRET), "xxh3": ""}


def _put_fact(world: World, key: str, value: Any) -> None:
    with world.manifest(world.memory / "version-1") as manifest:
        manifest[key] = value


def _put_pointer(world: World, key: str, value: Any) -> None:
    with world.pointer() as pointer:
        pointer["memory"][key] = world.text(value)


def attacks() -> list[Attack]:
    """All attacks, in a fixed order: the first ones are of all kinds."""
    kinds: tuple[Kind, ...] = ("exported", "checkpoint")
    listed = [
        Attack(f"{place} = {value!r}"[:120], kind, _put(place, value))
        for place, value in _puts()
        for kind in kinds
    ]
    everywhere: tuple[Kind, ...] = ("exported", "checkpoint", "memory")
    listed += [Attack(name, kind, change) for name, change in _links() for kind in everywhere]
    for name in ("weights.json", "answer.md", "metrics.csv"):
        for target in ("PRIVATE/secret.txt", "PRIVATE/pipe", "/dev/zero"):
            listed += [
                Attack(f"{name} is a link to {target}", kind,
                       lambda world, name=name, to=target: world.replace(world.model / name, to))
                for kind in kinds
            ]  # fmt: skip
    np.random.default_rng(0).shuffle(listed)
    return listed


def run(attack: Attack, whole: Path, work: Path, limit: int | None = None) -> None:
    """Run the commands (the first few of them) on a copy that is attacked; raises a `RuntimeError` for harm.

    A refusal raises its `InputError` after the other commands.
    """
    with _server() as (url, requests), _watched(work / "private") as read:
        world = World(whole, work, attack.kind, url)
        attack.change(world)
        before = world.outside()
        os.chdir(work)
        os.environ.update(
            ZOO_CACHE_DIR=str(work / "cache"), ZOO_KEY_FILE=str(work / "key"), ELASTICSEARCH_API_KEY=KEY,
            HF_HUB_OFFLINE="1", HF_HOME=str(work / "cache" / "huggingface"),
        )  # fmt: skip
        sys.stdin = io.StringIO("1\n" * 10)
        read.clear()
        refusal = ""
        for command in world.commands()[:limit]:
            code, shown = _call(command)
            name = " ".join(map(str, command[:2]))
            if code not in (0, 2):
                raise RuntimeError(f"{name}: exit code {code}: {shown[-1500:]}")
            errors = [line for line in shown.split("\n") if line.startswith("zoo: error: ")]
            if len(errors) != (code == 2):
                raise RuntimeError(f"{name}: not one line: {shown[-1500:]}")
            refusal = errors[0] if errors else refusal
            if match := re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", shown):
                raise RuntimeError(f"{name}: shows {match[0]!r}: {shown[-500:]!r}")
            if SECRET in shown:
                raise RuntimeError(f"{name}: shows a private file: {shown[-500:]}")
        if read:
            raise RuntimeError(f"private files were read: {read}")
        _check(world, before, requests)
    if refusal:
        raise InputError(refusal)


def _check(world: World, before: dict[str, bytes | None], requests: list[str]) -> None:
    if (world.work / "OWNED").exists():
        raise RuntimeError("code of the stranger has run")
    if requests:
        raise RuntimeError(f"the stranger's server was sent {requests}")
    after = world.outside()
    changed = [
        name for name in before.keys() | after.keys() if before.get(name, b"-") != after.get(name, b"-")
    ]
    if changed:
        raise RuntimeError(f"files outside of the model have changed: {changed}")
    for file in (world.work / "published").rglob("*"):
        if file.is_symlink() or (file.is_file() and SECRET.encode() in file.read_bytes()):
            raise RuntimeError(f"a private file is published: {file}")


def _call(command: list[object]) -> tuple[int, str]:
    """Run a command in this process: its exit code, and all that it shows."""
    shown = _Shown()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        code = main([str(part) for part in command])
    return code, shown.getvalue()


class _Shown(io.StringIO):
    def fileno(self) -> int:
        return 1


@contextmanager
def _watched(folder: Path) -> Iterator[list[str]]:
    """The names below a folder that Python opens from now on, for the rest of the process: hooks cannot be removed."""
    opened: list[str] = []
    watched = f"{folder}/"

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str | os.PathLike):
            name = os.path.normpath(os.path.join(folder.parent, os.fspath(arguments[0])))
            if name.startswith(watched):
                opened.append(name.removeprefix(watched))

    sys.addaudithook(note)
    yield opened


@contextmanager
def _server() -> Iterator[tuple[str, list[str]]]:
    """A server of the stranger on this machine: its URL, and the requests that it received."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            key = " with a key" if KEY in str(self.headers) else ""
            requests.append(f"{self.command} {self.path}{key}")
            self.send_response(400)
            self.send_header("X-Elastic-Product", "Elasticsearch")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()
