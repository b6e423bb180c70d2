"""A sweep without an account: Optuna chooses options, and each trial is a run folder on this machine.

python examples/sweeps/sweep.py --folder sweeps/topics --trials 20 --data.train_file train.csv
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import optuna
from optuna.trial import TrialState


def space(trial: optuna.Trial) -> dict[str, object]:
    """Choose the options of a trial. Copy this file and change these lines."""
    return {
        "model.features": trial.suggest_categorical("model.features", ["M1", "M5", "M7"]),
        "model.num_perspectives": trial.suggest_int("model.num_perspectives", 1, 10),
        "model.optimizer.lr": trial.suggest_float("model.optimizer.lr", 1e-4, 3e-3, log=True),
    }


def run_trial(trial: optuna.Trial, folder: Path, metric: str, options: list[str]) -> float:
    """Train a model in a process of its own, and return the validation score of its best epoch."""
    run_dir = folder / f"trial-{trial.number}"
    chosen = [f"--{name}={value}" for name, value in space(trial).items()]
    # A process of its own: its memory is free afterwards, and its end is not the end of the sweep.
    subprocess.run(
        [sys.executable, "-m", "zoo", "fit", *options, *chosen, "--run_dir", str(run_dir)], check=True
    )
    summary = json.loads((run_dir / "summary.json").read_text())
    scores = summary["best"].get("metrics", {})
    if metric not in scores:
        sys.exit(
            f"--metric {metric}: {run_dir}/summary.json has {', '.join(scores) or 'no validation scores'}"
        )
    return float(scores[metric])


def number_of_finished(study: optuna.Study) -> int:
    """Return the number of trials with a score."""
    return len(study.get_trials(deepcopy=False, states=[TrialState.COMPLETE]))


def main() -> None:
    """Run trials until the study has as many as wanted, those of earlier calls included."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--folder", type=Path, required=True, help="of the study: trials.db and run folders")
    parser.add_argument("--trials", type=int, default=20, help="finished trials that the study shall have")
    parser.add_argument("--metric", default="val/accuracy", help="score to maximize, in summary.json")
    ours, options = parser.parse_known_args()  # the other options are those of `zoo fit`

    ours.folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name="zoo",
        storage=f"sqlite:///{ours.folder / 'trials.db'}",
        direction="maximize",
        load_if_exists=True,
    )
    for _ in range(ours.trials - number_of_finished(study)):
        if number_of_finished(study) >= ours.trials:
            break  # by other processes
        trial = study.ask()
        try:
            score = run_trial(trial, ours.folder, ours.metric, options)
        except subprocess.CalledProcessError as error:
            study.tell(trial, state=TrialState.FAIL)
            if number_of_finished(study) == 0:
                sys.exit(error.returncode)  # a wrong option, which the command has explained
            continue
        study.tell(trial, score)
        print(f"trial {trial.number}: {ours.metric} {score:.4f} {trial.params}", flush=True)
    best = ours.folder / f"trial-{study.best_trial.number}"
    print(f"best {ours.metric} {study.best_value:.4f}: {study.best_params}")
    print(f"test once: zoo test --ckpt_path {best} --data.test_file TEST.csv")


if __name__ == "__main__":
    main()
