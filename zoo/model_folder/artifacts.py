"""Models elsewhere: an artifact of a run of Weights & Biases, or a repository of the Hugging Face Hub."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from datamodules.core.errors import InputError, excerpt, reason
from datamodules.core.storage import cache_folder, fingerprint_of, lock, named_disk_errors

if TYPE_CHECKING:
    from wandb import Artifact, Run

_PREFIX = "wandb:"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_NAME = re.compile(r"wandb:([^/:]+)/([^/:]+)/([\w.-]+)(:[^/:]+)?", re.ASCII)


def is_artifact_name(source: str) -> bool:
    """Return True for the name of an artifact: `wandb:entity/project/name` and perhaps `:version`."""
    return source.startswith(_PREFIX)


def check_artifact_name(source: str, with_version: bool = True) -> tuple[str, str, str]:
    """Return entity, project and name of an artifact, or raise an `InputError`."""
    match = _NAME.fullmatch(source)
    if match is None or (match[4] and not with_version):
        version = ":v3, or without a version for the latest" if with_version else ", without a version"
        raise InputError(f"{excerpt(source)}: no artifact's name; write wandb:entity/project/name{version}")
    return match[1], match[2], match[3]


@cache
def download(source: str) -> Path:
    """Download the files of an artifact, once per process, into a folder of the cache, and return it."""
    where = "/".join(check_artifact_name(source))
    version = source.removeprefix(_PREFIX + where) or ":latest"
    import wandb

    with named_errors(source):
        try:
            artifact = wandb.Api().artifact(where + version)
        except ValueError as error:  # there is no such project or artifact
            raise wandb.errors.Error(str(error)) from error
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


def log_artifact(
    run: Run, folder: Path, name: str, files: Mapping[str, object], aliases: Sequence[str] = ()
) -> Artifact:
    """Log a model folder as an artifact of a run, whose inputs are the checksums of its training `files`, by option."""
    import wandb

    files = {option: checksum for option, checksum in files.items() if checksum is not None}
    if not run.offline:  # W&B records no inputs of offline runs; the metadata have them as well
        for option, checksum in files.items():
            used = wandb.Artifact(option, type="dataset")
            with used.new_file("checksum.json", encoding="utf-8") as file:
                json.dump(checksum, file, sort_keys=True)
            run.use_artifact(used)
    artifact = wandb.Artifact(name, type="model", metadata={"files": files})
    artifact.add_dir(str(folder), skip_cache=True)
    return run.log_artifact(artifact, aliases=[*aliases])


def push(folder: Path, name: str, files: Mapping[str, object]) -> str:
    """Upload a model folder as a new version of an artifact, by a run of its own, and return the version's name."""
    entity, project, artifact_name = check_artifact_name(name, with_version=False)
    import wandb

    with named_errors(name), wandb.init(entity=entity, project=project, job_type="push") as run:
        artifact = log_artifact(run, folder, artifact_name, files)
        if run.offline:
            return f"{name}: `wandb sync {Path(run.dir).parent}` uploads it"
        return f"{_PREFIX}{entity}/{project}/{artifact.wait().name}"


@contextmanager
def named_errors(name: str) -> Iterator[None]:
    """Turn an error of W&B, of its client or of the HTTP library into an `InputError` that begins with a name."""
    import wandb

    try:
        yield
    except (wandb.errors.Error, OSError) as error:
        raise InputError(
            f"{name}: W&B has no such artifact, refuses, or cannot be reached ({reason(error)[:200]}); check the name,"
            " and log in with `wandb login` or $WANDB_API_KEY"
        ) from error


def is_hub_name(source: str) -> bool:
    """Return True for a possible name of a repository, `user/name`."""
    return _HUB_NAME.fullmatch(source) is not None and not source.endswith(".ckpt")


@cache
def download_from_hub(name: str) -> Path:
    """Download the files of a repository, once per process, and return their folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return Path(snapshot_download(name))
    except RepositoryNotFoundError as error:
        raise InputError(f"{name}: no such file or folder, nor model on the Hugging Face Hub") from error
    except OSError as error:  # of the Hub, of HTTP, or of the cache
        raise InputError(
            f"{name}: no such file or folder, and the Hugging Face Hub cannot be reached ({reason(error)[:80]}); check"
            " the connection or the name. HF_HUB_OFFLINE=1 uses only earlier downloads"
        ) from error


def push_to_hub(folder: Path, name: str) -> str:
    """Upload a model folder with the login of `huggingface-cli login` or $HF_TOKEN, and return its URL."""
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        address = api.create_repo(name, private=True, exist_ok=True)  # it contains texts of the memory
        api.upload_folder(repo_id=name, folder_path=str(folder), commit_message="Model of Memory Zoo")
    except Exception as error:  # errors of the Hub, of its client and of the HTTP library
        raise InputError(f"{name}: the Hub refuses or cannot be reached ({reason(error)})") from error
    return str(address)
