"""Texts of no known class: how many the default finds, beside the probability of its answer alone.

A quarter of the labels is left out of the training, and the test rows of these labels have no class; or, with
`--foreign`, the texts of another table. Printed are their share below the threshold that one in twenty test rows of
known classes is below, by the familiarity and by the probability; and what `zoo predict --unknown 0.05` says of both.

    python -m tests.benchmarks.unknown_texts TRAIN.csv TEST.csv --rows 10 --encoder FOLDER
"""

import numpy as np

import zoo
from datamodules.corpora.table import read_table
from tests.benchmarks.timing import parser

LEVEL = 0.05


def main() -> None:
    """Print a line for each draw of the labels."""
    arguments = parser(__doc__)
    arguments.add_argument("train", help="table of texts and labels")
    arguments.add_argument("test", help="another one")
    arguments.add_argument("--foreign", help="texts of no label, in place of those of a part of the labels")
    arguments.add_argument("--rows", type=int, default=50, help="labelled rows of each class")
    arguments.add_argument("--encoder", help="the default's transformer; omit it for words alone")
    arguments.add_argument("--seeds", type=int, default=3)
    options = arguments.parse_args()
    train, test = (read_table(each) for each in (options.train, options.test))
    own, of_test = np.array(train.labels), np.array(test.labels)
    others = list(read_table(options.foreign).texts[:]) if options.foreign else []
    texts = [*test.texts[:], *others]
    given = {} if options.encoder is None else {"transformer": options.encoder}
    for seed in range(options.seeds):
        random = np.random.default_rng(seed)
        labels = random.permutation(np.unique(own))
        known = labels if others else labels[len(labels) // 4 :]
        rows = [random.permutation(np.flatnonzero(own == label))[: options.rows] for label in known]
        chosen = np.concatenate(rows)
        model = zoo.fit(train.texts.take(chosen), own[chosen].tolist(), model_options=given, seed=seed)
        is_foreign = np.append(~np.isin(of_test, known), np.ones(len(others), bool))
        predictions, line = model.predict(texts, unknown=LEVEL, memories=0), f"seed {seed}:"
        for name in ("familiarity", "probability"):
            values = np.array([getattr(each, name) for each in predictions])
            found = (values[is_foreign] < np.quantile(values[~is_foreign], LEVEL)).mean()
            line += f" {name} {found:.3f},"
        called = np.array([each.reason == "unknown" for each in predictions])
        found, false = called[is_foreign].mean(), called[~is_foreign].mean()
        print(f"{line} --unknown {found:.3f}, of known classes {false:.3f}")


if __name__ == "__main__":
    main()
