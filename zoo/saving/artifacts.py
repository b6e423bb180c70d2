"""Weights & Biases: a model folder is an artifact of a run, and the files that it stands on are the run's inputs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from datamodules.core.errors import InputError, excerpt, reason
from datamodules.core.storage import cache_folder, fingerprint_of, lock, named_disk_errors
from datamodules.core.types import PlainDict
from datamodules.state import DataState

if TYPE_CHECKING:
    from wandb import Artifact, Run

_PREFIX = "wandb:"
_NAME = re.compile(r"wandb:([^/:]+)/([^/:]+)/([\w.-]+)(:[^/:]+)?", re.ASCII)
_NOT_IN_A_NAME = re.compile(r"[^\w.-]+", re.ASCII)


class Input(NamedTuple):
    """A file, a folder or a data set that a model stands on; its contents are not uploaded."""

    #: the option that names it, such as `train_file`.
    option: str
    file: str
    #: see `datamodules.core.storage.contents_of`.
    checksum: object
    #: the rows that were read of it; None = unknown.
    rows: int | None = None

    def describe(self) -> PlainDict:
        """Return plain values."""
        return self._asdict()

    def artifact(self) -> Artifact:
        """Return an artifact that holds the checksum: other contents are another version of it."""
        import wandb

        name = _NOT_IN_A_NAME.sub("-", Path(self.file).name)[:100] or self.option
        artifact = wandb.Artifact(name, type="dataset", metadata=self.describe())
        with artifact.new_file("checksum.json", encoding="utf-8") as file:
            json.dump(self.checksum, file, sort_keys=True)
        return artifact


def inputs_of(data: DataState, rows: Mapping[str, int]) -> Iterator[Input]:
    """Yield the files of a model's training; `rows` has numbers of rows by option."""
    for option, contents in data.files.items():
        files = data.options[option]
        is_list = isinstance(files, list | tuple) and isinstance(contents, list)
        pairs = zip(files, contents, strict=True) if is_list else [(files, contents)]
        for file, checksum in pairs:
            if checksum is not None:
                yield Input(option, str(file), checksum, rows.get(option))


def is_artifact_name(source: str) -> bool:
    """Return True for the name of an artifact: `wandb:entity/project/name` and perhaps `:version`."""
    return source.startswith(_PREFIX)


def check_artifact_name(source: str, with_version: bool = True) -> tuple[str, str, str]:
    """Return entity, project and name of an artifact, or raise an `InputError`."""
    match = _NAME.fullmatch(source)
    if match is None or (match[4] and not with_version):
        version = ":v3, or without a version for the latest" if with_version else ", without a version"
        raise InputError(
            f"{excerpt(source)}: no name of an artifact; write wandb:entity/project/name{version}"
        )
    return match[1], match[2], match[3]


@cache
def download(source: str) -> Path:
    """Download the files of an artifact, once per process, into a folder of the cache, and return it."""
    where = "/".join(check_artifact_name(source))
    version = source.removeprefix(_PREFIX + where) or ":latest"
    import wandb

    with named_errors(source):
        artifact = wandb.Api().artifact(where + version)
        _check_entries(source, artifact)
        description = {"artifact": where, "version": artifact.version, "digest": artifact.digest}
        folder = cache_folder(None) / f"wandb-{fingerprint_of(description)[:16]}"
        with lock(folder), named_disk_errors(folder, "$ZOO_CACHE_DIR"):
            if not folder.exists():
                partial = folder.with_name(f".{folder.name}.partial")
                shutil.rmtree(partial, ignore_errors=True)
                artifact.download(str(partial), skip_cache=True)
                partial.rename(folder)
        return folder


def _check_entries(source: str, artifact: Artifact) -> None:
    """Refuse an artifact with a file outside of its folder, or with a reference: it may name a file of this machine."""
    for entry in artifact.manifest.entries.values():
        path = PurePosixPath(entry.path)
        if entry.ref is not None or path.is_absolute() or ".." in path.parts or "\\" in entry.path:
            raise InputError(
                f"{source}: its file {excerpt(entry.path)} is a reference or lies outside of the folder, so it is no"
                " model of `zoo export`"
            )


def log_model(
    run: Run,
    folder: Path,
    name: str,
    inputs: Sequence[Input],
    metadata: PlainDict,
    aliases: Sequence[str] = (),
) -> Artifact:
    """Make a model folder an artifact of a run, after the files that it stands on, which become its inputs.

    W&B records no inputs of offline runs: there, only the metadata have the files.
    """
    import wandb

    if not run.offline:
        for each in inputs:
            run.use_artifact(each.artifact())
    described = [each.describe() for each in inputs]
    artifact = wandb.Artifact(name, type="model", metadata={**metadata, "inputs": described})
    artifact.add_dir(str(folder), skip_cache=True)
    return run.log_artifact(artifact, aliases=[*aliases])


def push(folder: Path, name: str, inputs: Sequence[Input], metadata: PlainDict) -> str:
    """Upload a model folder as a new version of an artifact, by a run of its own, and return the version's name."""
    entity, project, artifact_name = check_artifact_name(name, with_version=False)
    import wandb

    with named_errors(name), wandb.init(entity=entity, project=project, job_type="push") as run:
        artifact = log_model(run, folder, artifact_name, inputs, metadata)
        if run.offline:
            return f"{name}: `wandb sync {Path(run.dir).parent}` uploads it"
        return f"{_PREFIX}{entity}/{project}/{artifact.wait().name}"


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Turn an error of W&B, of its client or of the HTTP library into an `InputError` that begins with a name."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{name}: W&B has no such artifact, refuses, or cannot be reached ({reason(error)[:200]}); check the name,"
            " and log in with `wandb login` or $WANDB_API_KEY"
        ) from error
