"""The `zoo` command: training and evaluation on LightningCLI, and a look at models, memories, predictions.

`fit`, `validate`, `test` and `prepare` take a model and its data from YAML and from options; any value of the
YAML can be overridden by its name. The other commands are in `zoo.commands`.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml
from jsonargparse import ArgumentError
from lightning_fabric.utilities.exceptions import MisconfigurationException
from lightning_fabric.utilities.rank_zero import rank_zero_only
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.loggers import WandbLogger
from torch.multiprocessing.spawn import ProcessRaisedException

import zoo
from callbacks import PredictionTable, RunFolder, Throughput
from callbacks.csv_metrics import CSVMetrics
from datamodules.errors import InputError
from datamodules.retrieval import EmbeddedRetriever  # noqa: F401 (so that options can name it)
from datamodules.storage import named_disk_errors, write_json
from zoo.checkpoints import CHECKPOINT_KEY, own_memory, read_checkpoint
from zoo.commands import COMMANDS
from zoo.inference import model_options
from zoo.tasks.base import Task

USAGE = """usage: zoo COMMAND [OPTIONS]

Train and evaluate (options and YAML, see `zoo fit --help`):
  fit        train a model            zoo fit --config examples/knn_bilstm/ag_news.yaml
  validate   scores of a checkpoint on validation rows
  test       scores of a checkpoint   zoo test --ckpt_path CKPT --data.test_file FILE --output metrics.json
  prepare    read, index, retrieve and tokenise ahead of a run (same options as fit)

Use and look:
  predict    labels or scores         zoo predict --ckpt_path CKPT --input FILE_OR_- --output out.jsonl
  list       the models
  index      build a memory           zoo index --file FILE --memory FOLDER
  memory     grow, tune, show         zoo memory add CKPT more.csv
  search     the best memories        zoo search "some words" --memory FOLDER

Tables of the papers:
  reproduce  every row for every seed zoo reproduce NAME --data_dir FOLDER (zoo reproduce --list)
"""

log = logging.getLogger("zoo")


class ZooCLI(LightningCLI):
    """LightningCLI with a run folder: configuration, metrics, checkpoints and summary in one place."""

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Make a parser that raises what is wrong with the options; `main` prints it in one line."""
        return super().init_parser(exit_on_error=False, **kwargs)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options that are not a class's."""
        parser.add_argument(
            "--run_dir",
            type=str | None,
            default=None,
            help="folder of the run; default: runs/MODEL/DATE-TIME",
        )
        parser.add_argument(
            "--output", type=str | None, default=None, help="JSON file for the metrics of validate and test"
        )
        # Batches are dealt out by our own sampler, exactly.
        parser.set_defaults({"trainer.use_distributed_sampler": False, "trainer.max_epochs": 15})

    def _option(self, name: str) -> Any:
        return self._get(self.config, name)

    def before_instantiate_classes(self) -> None:
        """Choose the run folder and the W&B run."""
        if self.subcommand != "fit":
            self.run_dir = Path(self._option("run_dir") or ".")
            return
        model = str(self._option("model").class_path).rpartition(".")[2]
        # Processes that the launcher starts again for other devices inherit the name.
        default = os.environ.setdefault("ZOO_RUN_DIR", f"runs/{model}/{time.strftime('%Y%m%d-%H%M%S')}")
        self.run_dir = Path(self._option("run_dir") or default)
        if self.run_dir.exists() and not self.run_dir.is_dir():
            raise InputError(f"--run_dir {self.run_dir}: is a file; name a folder")
        resumed = self._option("ckpt_path")
        #: whether this run goes on in the folder of the run that it resumes.
        self.resumes = resumed is not None and self.run_dir.resolve() in Path(resumed).resolve().parents
        self.wandb_id: str | None = None
        if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            self._choose_wandb_run()

    def _choose_wandb_run(self) -> None:
        """A resumed run goes on in its W&B run: the id is kept in the run folder."""
        loggers = self._option("trainer").logger
        for logger in loggers if isinstance(loggers, list) else [loggers]:
            if not hasattr(logger, "class_path") or not logger.class_path.endswith("WandbLogger"):
                continue
            file = self.run_dir / "wandb_id"
            before = file.read_text() if self.resumes and file.exists() else None
            self.wandb_id = before or logger.init_args.id or uuid.uuid4().hex[:8]
            logger.init_args.id = self.wandb_id
            logger.init_args.resume = "allow"
            logger.init_args.save_dir = str(self.run_dir.resolve())  # W&B writes from a process of its own

    def _run_subcommand(self, subcommand: str) -> None:
        """Run it; a fit that is refused before it starts leaves the run folder as it was."""
        if subcommand != "fit" or rank_zero_only.rank != 0:  # type: ignore[attr-defined]
            super()._run_subcommand(subcommand)
            return
        earlier = self._make_room()
        try:
            super()._run_subcommand(subcommand)
        finally:
            # The configuration is the first file that a run writes when it starts.
            if not self.resumes and not (self.run_dir / "config.yaml").exists():
                shutil.rmtree(self.run_dir, ignore_errors=True)
                if earlier is not None:
                    earlier.rename(self.run_dir)
            elif earlier is not None:
                print(f"{self.run_dir} held an earlier run; it is now {earlier}", file=sys.stderr)

    def _make_room(self) -> Path | None:
        """Move an earlier run out of the way, unless this one resumes it: no run is ever overwritten.

        Returns:
            Where the earlier run is now; None if there was none.
        """
        earlier = None
        with named_disk_errors(self.run_dir, "--run_dir"):
            if not self.resumes and self.run_dir.exists() and any(self.run_dir.iterdir()):
                number = 1
                while (kept := self.run_dir.with_name(f"{self.run_dir.name}.{number}")).exists():
                    number += 1
                earlier = self.run_dir.rename(kept)
            self.run_dir.mkdir(parents=True, exist_ok=True)
            if self.wandb_id is not None:
                (self.run_dir / "wandb_id").write_text(self.wandb_id)
        return earlier

    def instantiate_classes(self) -> None:
        """Make model, data and trainer; a model without memory retrieves none."""
        super().instantiate_classes()
        # Hours of preparation should not end in a refusal. None is `prepare`; otherwise a checkpoint brings both.
        if self.subcommand in ("fit", None) and isinstance(self.model, Task):
            self.model.check_data(self.datamodule)
            start = self.model.hparams.get("init_from")
            resumes = self.subcommand == "fit" and self._option("ckpt_path")
            if start is not None and not resumes and not Path(start).is_file():
                raise InputError(f"model.init_from={start}: no such checkpoint")
        if not getattr(self.model, "uses_memory", True) and self.datamodule.num_memories:
            log.info("this model reads no memories: none are retrieved")
            self.datamodule.num_memories = 0

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Add the loggers and callbacks of a run folder to what the user configured."""
        configured = self._get(self.config_init, "trainer")
        logger = configured.get("logger")
        callbacks: list[Callback] = list(configured.get("callbacks") or [])
        if self.subcommand != "fit":
            if logger is None:
                kwargs["logger"] = False
            return super().instantiate_trainer(**kwargs, enable_checkpointing=False)
        if logger is not False and not configured.get("fast_dev_run"):
            loggers = [] if logger in (None, True) else logger if isinstance(logger, list) else [logger]
            kwargs["logger"] = [CSVMetrics(self.run_dir), *loggers]
            if any(isinstance(item, WandbLogger) for item in loggers):
                callbacks.append(PredictionTable())
        config = yaml.safe_load(
            self._parser(self.subcommand).dump(self.config[self.subcommand], skip_none=False)
        )
        callbacks += [RunFolder(self.run_dir, config), Throughput()]
        if configured.get("enable_checkpointing") is not False:
            folder = self.run_dir / "checkpoints"
            callbacks += [
                ModelCheckpoint(
                    folder,
                    filename="best",
                    monitor=self.datamodule.monitor,
                    mode="max",
                    enable_version_counter=False,
                ),
                ModelCheckpoint(folder, filename="last", enable_version_counter=False),
            ]
        return super().instantiate_trainer(default_root_dir=self.run_dir, callbacks=callbacks, **kwargs)

    def _parse_ckpt_path(self) -> None:
        # LightningCLI would overlay the checkpoint's arguments on the command line's. `_with_checkpoint`
        # puts them below it instead, with the data's.
        pass

    def after_fit(self) -> None:
        """Say where the run is."""
        for logger in self.trainer.loggers:
            if isinstance(logger, WandbLogger) and self.trainer.is_global_zero:
                logger.experiment.finish()  # or the next run of this process would go on in it
        if self.trainer.is_global_zero and self.trainer.checkpoint_callback is not None:
            best = self.trainer.checkpoint_callback
            if isinstance(best, ModelCheckpoint) and best.best_model_score is not None:
                print(f"best {best.monitor} {float(best.best_model_score):.4f}")
            print(f"run folder: {self.run_dir}")

    def after_validate(self) -> None:
        """Write the scores."""
        self._write_scores("val")

    def after_test(self) -> None:
        """Write the scores."""
        self._write_scores("test")

    def _write_scores(self, stage: str) -> None:
        if not self.trainer.is_global_zero:
            return
        scores = {
            name.removeprefix(f"{stage}/"): float(value)
            for name, value in self.trainer.callback_metrics.items()
        }
        if (output := self._option("output")) is not None:
            path = Path(output)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, scores)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        args: the arguments; None = those of the process.

    Returns:
        The exit code: 0, or 2 where the user has to put something right.
    """
    _quiet_lightning()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("datamodules").setLevel(logging.INFO)
    log.setLevel(logging.INFO)
    args = list(sys.argv[1:] if args is None else args)
    if not args or args[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    command, options = args[0], args[1:]
    try:
        if command == "--version":
            print(zoo.__version__)
        elif command in ("fit", "validate", "test", "prepare"):
            _lightning(command, options)
        elif command in COMMANDS:
            COMMANDS[command](options)
        else:
            raise InputError(
                f"zoo {command}: no such command; there are fit, validate, test, prepare, "
                + ", ".join(COMMANDS)
            )
    except InputError as error:
        print(f"zoo: error: {error}", file=sys.stderr)
        return 2
    except ValueError as error:
        # What a class refuses while the parser makes it arrives inside the parser's own error.
        if (cause := _cause(error)) is None:
            raise
        print(f"zoo: error: {cause}", file=sys.stderr)
        return 2
    except ArgumentError as error:
        print(f"zoo: error: {_in_one_line(str(error))}; see `zoo {command} --help`", file=sys.stderr)
        return 2
    except SystemExit as exit:  # --help and --print_config end this way
        return exit.code if isinstance(exit.code, int) else 0
    except MisconfigurationException as error:  # of the trainer: no such device, a strategy that can't be had
        print(f"zoo: error: --trainer: {_in_one_line(str(error))}", file=sys.stderr)
        return 2
    except ProcessRaisedException as error:
        # What a process that was forked for a device refused arrives as its printed traceback.
        if (refused := re.search(r"InputError: (.*)", str(error))) is None:
            raise
        print(f"zoo: error: {refused[1]}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        print(
            f"zoo: error: {error.filename or 'a file'}: {error.strerror}; free some space or write elsewhere"
            " (--run_dir, --output, --data.cache_dir)",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("zoo: interrupted", file=sys.stderr)
        return 130
    return 0


def _cause(error: BaseException) -> InputError | None:
    """The user's mistake behind an error, if there is one."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, InputError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _in_one_line(message: str) -> str:
    """What the parser of options found wrong, without its account of the types that it tried."""
    message = " ".join(message.split())
    if found := re.match(r'Parser key "model": .*Expected a dot import path string: (\S+)', message):
        return f"no model {found[1]!r}; there are {', '.join(zoo.list_models())}"
    message = re.sub(r"Does not validate against any of the Union subtypes .*?Errors: - ", "", message)
    return re.sub(r" - Expected a <class 'NoneType'>.*", "", message)


def _quiet_lightning() -> None:
    """Leave the screen to what concerns the user: errors, progress, scores."""
    # Seeds, devices that were not found, and offers of the makers' services.
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It counts failures that our own log tells, with when the next try is.
    logging.getLogger("elastic_transport").setLevel(logging.ERROR)
    # LightningCLI's own calls of jsonargparse, and how we call LightningCLI.
    warnings.filterwarnings("ignore", module=r"pytorch_lightning\.cli")
    warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
    for message in (
        # Between Lightning and PyTorch.
        ".*LeafSpec.* is deprecated",
        # A resumed run goes on in its folder, and `CSVMetrics` deletes nothing.
        "Experiment logs directory .* exists",
        "Checkpoint directory .* exists",
        # A test needs no callbacks of the training.
        "Be aware that when using `ckpt_path`",
        # The scores are summed over processes already, exactly.
        "It is recommended to use `self.log",
        # Of small tables: nothing is lost, an epoch's figures are logged at its end.
        "The number of training batches",
        ".*does not have many workers",
    ):
        warnings.filterwarnings("ignore", message=message)


def _lightning(command: str, options: list[str]) -> None:
    checkpoint = _value_of("--ckpt_path", options)
    if checkpoint is None and command in ("validate", "test") and "--help" not in options:
        raise InputError(f"zoo {command}: name a trained model with --ckpt_path")
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint is not None:
            options = [*_with_checkpoint(checkpoint, command, options, Path(folder)), *options]
        settings: dict[str, Any] = {
            "model_class": pl.LightningModule,
            "datamodule_class": pl.LightningDataModule,
            "subclass_mode_model": True,
            "subclass_mode_data": True,
            "save_config_callback": None,
            "seed_everything_default": 0,
        }
        if command == "prepare":
            cli = ZooCLI(args=options, run=False, **settings)
            cli.datamodule.prepare_data()
        else:
            try:
                ZooCLI(args=[command, *options, "--weights_only", "true"], **settings)
            finally:
                os.environ.pop("ZOO_RUN_DIR", None)


def _with_checkpoint(checkpoint: str, command: str, options: Sequence[str], folder: Path) -> list[str]:
    """Options that set model and data as the checkpoint says; the user's own options come after them."""
    contents = read_checkpoint(checkpoint)
    ours = contents[CHECKPOINT_KEY]
    config: dict[str, Any] = {
        "model": {"class_path": f"zoo.{ours['model']}", "init_args": model_options(contents)}
    }
    state = ours["data"]
    # Nothing of the training is read again, unless rows were split off it: the memory is where the checkpoint
    # says.
    data = {**state["options"], **{key: state[key] for key in ("num_memories", "retriever") if key in state}}
    # A matching model's memory holds candidates; its own ones are built when they are first needed.
    retrieves = "num_memories" in state or state["options"]["candidates"] == "retrieved"
    memory = {"memory": state["memory"]} if retrieves else {}
    if command == "test":
        data |= {**memory, "test_file": None}
        if _value_of("--data.test_file", options) and "test_split" in data:
            data["test_split"] = None
    elif command == "validate":
        train_file = _value_of("--data.train_file", options) or data["train_file"]
        own = state.get("memory") == str(own_memory(checkpoint))
        if own or _value_of("--data.validation_file", options) or data["validation_file"]:
            data |= memory
        elif (
            isinstance(train_file, str)
            and not train_file.startswith("hub:")
            and not Path(train_file).exists()
        ):
            raise InputError(
                f"{train_file}: no such file, and the validation rows were split off it; say where it is now"
                " (--data.train_file), or name other rows (--data.validation_file)"
            )
    config["data"] = {"class_path": f"datamodules.{state['class']}", "init_args": data}
    file = folder / "checkpoint.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    return ["--config", str(file)]


def _value_of(option: str, options: Sequence[str]) -> str | None:
    for i, item in enumerate(options):
        if item == option and i + 1 < len(options):
            return options[i + 1]
        if item.startswith(f"{option}="):
            return item.partition("=")[2]
    return None
