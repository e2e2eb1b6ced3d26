"""Wrong study files and the whole message that each is answered with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bad:
    """A study file `s.yaml`, and what is said about it on a machine of 2 nodes with 4 devices each."""

    name: str
    text: str
    message: str
    scale: str = "paper"


def laughs(levels: int) -> str:
    """A study whose aliases multiply by ten at each level."""
    lines = ["question: How?", "l0: &l0 [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


BAD = [
    # Keys.
    Bad(
        "unknown key of a study",
        "question: How?\nfigurs: []\n",
        "s.yaml:2: figurs: unknown key `figurs`\n    did you mean `figures`?",
    ),
    Bad(
        "unknown key of a scale",
        "question: How?\nscales:\n  mini:\n    repeat: 3\n",
        "s.yaml:4: scales.mini.repeat: unknown key `repeat`\n    did you mean `repeats`?",
    ),
    Bad(
        "unknown key in base",
        "question: How?\nbase:\n  modle: mlp\n",
        "s.yaml:3: base.modle: unknown key `modle`\n    did you mean `model`?",
    ),
    Bad(
        "key of a part written beside the parts",
        "question: How?\nbase:\n  epochs: 3\n",
        "s.yaml:3: base.epochs: unknown key `epochs`\n    did you mean `train.epochs`?",
    ),
    Bad(
        "dotted key in base",
        "question: How?\nbase:\n  batch.per_rank: 3\n",
        "s.yaml:3: base.batch.per_rank: unknown key `batch.per_rank`\n    write `batch: {per_rank: …}`",
    ),
    Bad(
        "unknown key in a scale's base",
        "question: How?\nscales:\n  mini:\n    base:\n      batch: {per_rnk: 3}\n",
        "s.yaml:5: scales.mini.base.batch.per_rnk: unknown key `per_rnk`\n    did you mean `per_rank`?",
        scale="mini",
    ),
    Bad(
        "unknown dotted key in vary",
        "question: How?\nvary:\n  optimizer.learning_rate: [0.1, 0.2]\n",
        "s.yaml:3: vary.optimizer.learning_rate: unknown key `optimizer.learning_rate`\n"
        "    did you mean `optimiser.learning_rate`?",
    ),
    Bad(
        "unknown last part of a dotted key",
        "question: How?\nzip:\n  batch.per_rnk: [3, 4]\n",
        "s.yaml:3: zip.batch.per_rnk: `batch` has no key `per_rnk`\n    did you mean `per_rank`?",
    ),
    Bad(
        "unknown key in exclude",
        "question: How?\nvary: {ranks: [1]}\nexclude:\n- {rnks: 2}\n",
        "s.yaml:4: exclude[0].rnks: unknown key `rnks`\n    did you mean `ranks` or `ranks_per_node`?",
    ),
    Bad(
        "unknown option of a strategy",
        "question: How?\nbase:\n  strategy: {name: allreduce, bucket: 3}\n",
        "s.yaml:3: base.strategy.bucket: unknown key `bucket`\n    did you mean `bucket_mib`?",
    ),
    Bad(
        "option of another data source",
        "question: How?\nbase:\n  data:\n    source: digits\n    root: /data\n",
        "s.yaml:5: base.data.root: unknown key `root`\n    valid: on_error, preprocess, quality, resize, scale, shard, source",
    ),
    Bad(
        "misspelt label of a value",
        "question: How?\nvary:\n  seed:\n  - {value: 1, labl: one}\n",
        "s.yaml:4: vary.seed[0].labl: unknown key `labl`\n    a value with a label is `{value: …, label: …}`",
    ),
    Bad(
        "missing question",
        "base: {ranks: 1}\n",
        "s.yaml:1: question: key `question` is missing\n    add it",
    ),
    Bad(
        "repeat set by hand",
        "question: How?\nvary: {repeat: [0, 1]}\n",
        "s.yaml:2: vary.repeat: `repeat` is set by the study's `repeats`\n    set `repeats`",
    ),
    Bad(
        "key that varies twice",
        "question: How?\nvary: {seed: [0, 1]}\nzip: {seed: [2, 3]}\n",
        "s.yaml:3: zip.seed: `seed` varies twice\n    first at s.yaml:2: vary.seed",
    ),
    # Types and ranges.
    Bad(
        "text for a number",
        "question: How?\nbase:\n  ranks: many\n",
        "s.yaml:3: base.ranks: must be a whole number, not `many`",
    ),
    Bad(
        "number for a map",
        "question: How?\nbase:\n  batch: 32\n",
        "s.yaml:3: base.batch: must be a map of keys to values, not `32`\n    its keys: accumulate, global, per_rank",
    ),
    Bad(
        "value for a list",
        "question: How?\nvary:\n  ranks: 5\n",
        "s.yaml:3: vary.ranks: must be a list, not `5`\n    write `[5]`",
    ),
    Bad(
        "nested map in vary",
        "question: How?\nvary:\n  batch: {per_rank: [8, 16]}\n",
        's.yaml:3: vary.batch: must be a list, not `{"per_rank": [8, 16]}`\n    write `batch.per_rank: […]`',
    ),
    Bad(
        "yes for true",
        "question: How?\nbase:\n  optimiser: {nesterov: yes}\n",
        "s.yaml:3: base.optimiser.nesterov: must be true or false, not `yes`\n    write `true`",
    ),
    Bad(
        "empty list of values",
        "question: How?\nvary:\n  ranks: []\n",
        "s.yaml:3: vary.ranks: must have at least 1 value, not 0",
    ),
    Bad(
        "number out of range",
        "question: How?\nbase:\n  ranks: 0\n",
        "s.yaml:3: base.ranks: must be at least 1, not `0`",
    ),
    Bad(
        "too large a number",
        "question: How?\nbase:\n  ranks: 99999999999999999999999999999999999999999\n",
        "s.yaml:3: base.ranks: must be at most 1,000,000, not `99999999999999999999999999999999999999999`",
    ),
    Bad(
        "a value in a list out of range",
        "question: How?\nvary:\n  optimiser.learning_rate:\n  - 0.1\n  - -0.1\n",
        "s.yaml:5: vary.optimiser.learning_rate[1]: must be more than 0, not `-0.1`",
    ),
    Bad(
        "misspelt word",
        "question: How?\nbase:\n  dtype: float23\n",
        "s.yaml:3: base.dtype: `float23` is not valid here\n    did you mean `float32`?",
    ),
    Bad(
        "misspelt model",
        "question: How?\nvary:\n  model: [mlp, resnet5O]\n",
        "s.yaml:3: vary.model[1]: there is no model `resnet5O`\n    did you mean `resnet50`?",
    ),
    Bad(
        "unknown model",
        "question: How?\nbase:\n  model: gpt\n",
        "s.yaml:3: base.model: there is no model `gpt`\n"
        "    the models here classify images; add another as `{import: file:Class}` from config/extensions/",
    ),
    Bad(
        "model that nobody has",
        "question: How?\nbase:\n  model: qqqq\n",
        "s.yaml:3: base.model: there is no model `qqqq`\n"
        "    valid: small_cnn, small_alexnet, small_vgg, small_resnet, small_densenet, small_inception, mlp, a classification network of torchvision such as resnet50, "
        "or {import: file:Class} from config/extensions/",
    ),
    Bad(
        "list for a model",
        "question: How?\nbase:\n  model: [mlp]\n",
        's.yaml:3: base.model: must be a name or a map of keys to values, not `["mlp"]`\n'
        "    valid: small_cnn, small_alexnet, small_vgg, small_resnet, small_densenet, small_inception, mlp, a classification network of torchvision such as resnet50, "
        "or {import: file:Class} from config/extensions/",
    ),
    Bad(
        "options of a model without its name",
        "question: How?\nbase:\n  model: {layers: 3}\n",
        "s.yaml:3: base.model: the model has no `name`\n"
        "    valid: small_cnn, small_alexnet, small_vgg, small_resnet, small_densenet, small_inception, mlp, a classification network of torchvision such as resnet50, "
        "or {import: file:Class} from config/extensions/",
    ),
    Bad(
        "name for a data source",
        "question: How?\nbase:\n  data: digits\n",
        "s.yaml:3: base.data: must be a map of keys to values, not `digits`\n    write `{source: digits}`",
    ),
    Bad(
        "misspelt data source",
        "question: How?\nbase:\n  data: {source: digit}\n",
        "s.yaml:3: base.data.source: there is no data source `digit`\n    did you mean `digits`?",
    ),
    Bad(
        "size in unknown units",
        "question: How?\nbase:\n  data: {source: digits, scale: 3 parsecs}\n",
        "s.yaml:3: base.data.scale: must be a size such as `64 MiB` or `2x node memory`, not `3 parsecs`",
    ),
    Bad(
        "size that is no number",
        "question: How?\nbase:\n  data: {source: digits, scale: 1.2.3 GB}\n",
        "s.yaml:3: base.data.scale: `1.2.3 GB` is not a size from 1 byte to 1 EB\n"
        "    write it as `64 MiB`, `1.5 GB` or `2x node memory`",
    ),
    Bad(
        "unknown device",
        "question: How?\nbase:\n  device: gpu\n",
        "s.yaml:3: base.device: must be `cpu`, `cuda` or `emulated:<accelerator>`, not `gpu`",
    ),
    Bad(
        "own model written as a Python path",
        "question: How?\nbase:\n  model: {import: my.nets.Net}\n",
        "s.yaml:3: base.model.import: must be `file:Class`, a file in config/extensions/ without its .py, "
        "not `my.nets.Net`",
    ),
    Bad(
        "own model in a missing file",
        "question: How?\nbase:\n  model: {import: 'nets:Net'}\n",
        "s.yaml:3: base.model.import: `nets:Net` names config/extensions/nets.py, which does not exist\n"
        "    config/extensions holds no Python file",
    ),
    Bad(
        "a tag that is no word",
        "question: How?\ntags: [GPU scaling]\n",
        "s.yaml:2: tags[0]: must be a word of lower-case letters, digits and `_`, starting with a letter, not `GPU scaling`",
    ),
    Bad(
        "unknown scale",
        "question: How?\nscales: {minii: {}}\n",
        "s.yaml:2: scales.minii: must be `mini` or `node` (the rest of the file is `paper`), not `minii`",
    ),
    Bad(
        "a scale that the study has not",
        "question: How?\nscales: {mini: {}}\n",
        "s.yaml:2: scales: has no scale `node`\n    it has paper, mini: set --config scale=paper",
        scale="node",
    ),
    Bad(
        "label that is a list",
        "question: How?\nvary: {seed: [{value: 1, label: [one]}]}\n",
        's.yaml:2: vary.seed[0].label: must be text, not `["one"]`',
    ),
    Bad(
        "two labels for one value",
        "question: How?\n"
        "vary:\n"
        "  strategy:\n"
        "  - {value: {name: allreduce, bucket_mib: 1}, label: small buckets}\n"
        "  - {value: {name: allreduce, bucket_mib: 9}, label: large buckets}\n",
        's.yaml:5: vary.strategy[1].value: column `strategy` has the value "allreduce" under two labels, '
        "`small buckets` and `large buckets`\n"
        "    label what differs: vary the option alone, such as `strategy.<option>`",
    ),
    Bad(
        "keys in step of unequal lengths",
        "question: How?\nzip:\n  ranks: [1, 2]\n  seed: [1, 2, 3]\n",
        "s.yaml:2: zip: keys that vary together need equally many values: ranks has 2, seed has 3\n"
        "    give each key one value per point",
    ),
    Bad(
        "repeats of an included run beyond the study's",
        "question: How?\ninclude:\n- {seed: 1, repeats: 5}\nrepeats: 3\n",
        "s.yaml:3: include[0].repeats: must be a whole number from 1 to the study's 3, not `5`\n"
        "    raise the study's `repeats`, or lower this one",
    ),
    # What is impossible.
    Bad(
        "one process with four ranks",
        "question: How?\nbase: {strategy: single}\nvary:\n  ranks: [1, 4]\n",
        "s.yaml:4: vary.ranks[1]: strategy `single` has at most 1 rank, not 4\n"
        "    choose another strategy, or exclude this combination",
    ),
    Bad(
        "more servers among the ranks than ranks",
        "question: How?\nbase:\n  strategy: {name: parameter_server, placement: colocated, servers: 2}\n  ranks: 1\n",
        "s.yaml:4: base.ranks: 2 servers among the ranks need 2 ranks, not 1\n"
        "    use fewer servers, or exclude this combination",
    ),
    Bad(
        "sharded layers that are not there",
        "question: How?\nbase:\n  strategy: fsdp\n  device: emulated:infinite\n",
        "s.yaml:4: base.device: `fsdp` exchanges inside the layers, of which an emulated accelerator has none\n"
        "    use a real device, or exclude this combination",
    ),
    Bad(
        "MPI on an emulated network",
        "question: How?\nbase:\n  strategy: mpi_allreduce\n  network: {mib_per_s: 10}\n",
        "s.yaml:4: base.network: ranks that mpirun starts cannot be put into an emulated network\n"
        "    choose another strategy, or exclude this combination",
    ),
    Bad(
        "Horovod in bfloat16",
        "question: How?\nbase:\n  strategy: horovod\n  dtype: bfloat16\n",
        "s.yaml:4: base.dtype: Horovod cannot sum bfloat16\n    choose float32, or exclude this combination",
    ),
    Bad(
        "Adasum without MPI",
        "question: How?\nbase:\n  strategy: {name: horovod, operation: adasum}\n",
        "s.yaml:3: base.strategy.operation: Horovod has Adasum on CPUs over MPI only\n    add `transport: mpi` to the strategy",
    ),
    Bad(
        "global batch that ranks cannot share",
        "question: How?\nbase:\n  strategy: allreduce\n  batch: {global: 10}\nvary:\n  ranks: [2, 4]\n",
        "s.yaml:4: base.batch.global: 10 samples cannot be divided equally among 4 ranks\n"
        "    choose another number, or exclude this combination",
    ),
    Bad(
        "both kinds of batch",
        "question: How?\nbase: {batch: {per_rank: 8}}\nscales: {mini: {base: {batch: {global: 8}}}}\n",
        "s.yaml:2: base.batch: needs exactly one of `per_rank` and `global`\n    set the other one to null",
        scale="mini",
    ),
    Bad(
        "two ends of a run",
        "question: How?\nbase:\n  measure: {steps: 5, minutes: 5}\n",
        "s.yaml:3: base.measure: `steps` and `minutes` both end the run\n    keep one of them, set the other to null",
    ),
    Bad(
        "a precision without a window",
        "question: How?\nbase:\n  measure: {precision: 0.02}\n",
        "s.yaml:3: base.measure.precision: ends the window early, and no window is given\n"
        "    set `measure.steps` or `measure.minutes` as its limit",
    ),
    Bad(
        "ranks that nodes cannot share",
        "question: How?\nbase:\n  strategy: allreduce\n  ranks: 3\n  nodes: 2\n",
        "s.yaml:5: base.nodes: 3 ranks cannot be divided equally among 2 nodes\n"
        "    choose another number, or exclude this combination",
    ),
    Bad(
        "nodes and ranks per node that do not fit",
        "question: How?\nbase:\n  strategy: allreduce\n  ranks: 4\n  nodes: 2\n  ranks_per_node: 1\n",
        "s.yaml:6: base.ranks_per_node: 2 nodes of 1 ranks are not 4 ranks\n    leave out `nodes` or `ranks_per_node`",
    ),
    Bad(
        "ranks that leave a node half empty",
        "question: How?\nbase:\n  strategy: allreduce\n  ranks: 6\n  ranks_per_node: 4\n",
        "s.yaml:5: base.ranks_per_node: 6 ranks do not fill nodes of 4\n"
        "    choose another number, or exclude this combination",
    ),
    Bad(
        "nothing but more nodes than the machine has",
        "question: How?\nbase: {strategy: allreduce}\nvary:\n  ranks:\n  - 64\n",
        "s.yaml:5: vary.ranks[0]: 64 ranks need 16 nodes; machine `lab` has 2\n"
        "    vary smaller numbers, or exclude this combination",
    ),
    Bad(
        "nothing but more ranks on a node than it has devices",
        "question: How?\nbase: {strategy: allreduce, ranks: 8, ranks_per_node: 8}\n",
        "s.yaml:2: base.ranks_per_node: 8 ranks on a node need as many devices; machine `lab` has 4 on each\n"
        "    vary smaller numbers, or exclude this combination",
    ),
    Bad(
        "a key that no machine has an end of",
        "question: How?\nvary:\n  seed: {to: machine}\n",
        "s.yaml:3: vary.seed: `seed` has no end that a machine sets\n"
        "    write a list; as many as the machine has can be `ranks`, `nodes`, `loader.workers`",
    ),
    Bad(
        "as many as something that is no machine",
        "question: How?\nvary:\n  ranks: {to: moon}\n",
        "s.yaml:3: vary.ranks.to: `moon` is not valid here\n    valid: machine, node",
    ),
    Bad(
        "more than `to` in an axis that the machine ends",
        "question: How?\nvary:\n  ranks: {to: machine, from: 2}\n",
        "s.yaml:3: vary.ranks.from: unknown key `from`\n    write `{to: machine}` or `{to: node}`",
    ),
    Bad(
        "fault on a rank that is not there",
        "question: How?\nbase:\n  faults:\n  - {kind: slow_rank, rank: 3, seconds: 1}\n",
        "s.yaml:4: base.faults[0].rank: there is no rank 3 among 1\n    ranks are counted from 0",
    ),
    Bad(
        "misspelt fault",
        "question: How?\nbase:\n  faults:\n  - {kind: slow_rnk, rank: 3, seconds: 1}\n",
        "s.yaml:4: base.faults[0].kind: `slow_rnk` is not valid here\n    did you mean `slow_rank`?",
    ),
    Bad(
        "seed that repeats push too far",
        "question: How?\nbase: {seed: 2147483647}\nrepeats: 2\n",
        "s.yaml:2: base.seed: repeat 1 has seed 2147483648; the largest is 2147483647",
    ),
    Bad(
        "study of which all is excluded",
        "question: How?\nvary: {ranks: [1]}\nexclude:\n- {ranks: 1}\n",
        "s.yaml:3: exclude: `exclude` leaves no run at scale `paper`\n    exclude fewer",
    ),
    Bad(
        "run that is included twice",
        "question: How?\nbase: {strategy: allreduce}\nvary: {ranks: [1, 2]}\ninclude:\n- {ranks: 2}\n",
        "s.yaml:5: include[0].ranks: makes the same run as another combination\n"
        "    leave one out; the other is at s.yaml:3: vary.ranks[1]",
    ),
    Bad(
        "value that varies twice",
        "question: How?\nvary:\n  seed: [1, 2]\n  optimiser.momentum: [0.5, 0.50]\n",
        "s.yaml:4: vary.optimiser.momentum[1]: makes the same run as another combination\n"
        "    leave one out; the other is at s.yaml:4: vary.optimiser.momentum[0]",
    ),
    Bad(
        "too many runs",
        "question: How?\nvary:\n  seed: [0, 100000]\n  ranks: [1, 2, 3]\nrepeats: 10000\n",
        "s.yaml:2: vary: makes 60,000 runs; at most 50,000 are expanded\n"
        "    vary fewer keys, or vary keys together with `zip`",
    ),
    # Figures and tables.
    Bad(
        "two figures of one name",
        "question: How?\nfigures:\n- {kind: efficiency}\n- {kind: lines, name: efficiency, x: seed, y: loss}\n",
        "s.yaml:4: figures[1].name: two figures have the name `efficiency`\n    give one of them another name",
    ),
    Bad(
        "two tables of one name",
        "question: How?\ntables:\n- {name: t, values: [loss]}\n- {name: t, values: [accuracy]}\n",
        "s.yaml:4: tables[1].name: two tables have the name `t`\n    give one of them another name",
    ),
    Bad(
        "figure over a column that no run has",
        "question: How?\nfigures:\n- {kind: lines, x: ranks, y: throughput}\n",
        "s.yaml:3: figures[0].y: no run of this study has a column `throughput`\n"
        "    did you mean `throughput_samples_per_s`?",
    ),
    Bad(
        "table over a column that no run has",
        "question: How?\ntables:\n- {name: t, values: [loss, acuracy]}\n",
        "s.yaml:3: tables[0].values[1]: no run of this study has a column `acuracy`\n    did you mean `accuracy` or `time_to_accuracy_s`?",
    ),
    Bad(
        "series over an option that no run has",
        "question: How?\nfigures:\n- {kind: efficiency, series: strategy.servers}\n",
        "s.yaml:3: figures[0].series: no run of this study has a column `strategy.servers`\n"
        "    did you mean `strategy.name` or `strategy`?",
    ),
    Bad(
        "misspelt kind of figure",
        "question: How?\nfigures:\n- {kind: eficiency}\n",
        "s.yaml:3: figures[0].kind: `eficiency` is not valid here\n    did you mean `efficiency`?",
    ),
    Bad(
        "lines without a vertical axis",
        "question: How?\nfigures:\n- {kind: lines, x: ranks}\n",
        "s.yaml:3: figures[0]: a figure of kind `lines` needs `y`\n    add `y`, the name of a column",
    ),
    Bad(
        "axis of a figure that knows its own",
        "question: How?\nfigures:\n- {kind: efficiency, x: ranks}\n",
        "s.yaml:3: figures[0].x: a figure of kind `efficiency` sets `x` itself\n    use kind `lines`",
    ),
    Bad(
        "prediction that nobody makes",
        "question: How?\nfigures:\n- {kind: lines, x: ranks, y: exchange_s, prediction: exchange_s}\n",
        "s.yaml:3: figures[0].prediction: `exchange_s` is not a prediction that a figure of kind `lines` can show\n"
        "    with kind `lines` there is predicted_step_time_s, predicted_memory_mib",
    ),
    Bad(
        "where that no run agrees with",
        "question: How?\nbase: {strategy: allreduce}\nvary: {ranks: [1, 2]}\n"
        "figures:\n- {kind: efficiency, where: {ranks: 7}}\n",
        "s.yaml:5: figures[0].where.ranks: no run of this study has `ranks` `7`\n    there is `1`, `2`",
    ),
    Bad(
        "where whose keys agree with no run together",
        "question: How?\nzip: {seed: [0, 1], batch.per_rank: [8, 16]}\n"
        "figures:\n- {kind: efficiency, where: {seed: 0, batch.per_rank: 16}}\n",
        "s.yaml:4: figures[0].where: no run of this study agrees with all of it\n    remove a key",
    ),
    Bad(
        "where over an unknown column, in a scale",
        "question: How?\nscales:\n  mini:\n    tables:\n    - {name: t, values: [loss], where: {rnks: 1}}\n",
        "s.yaml:5: scales.mini.tables[0].where.rnks: no run of this study has a column `rnks`\n"
        "    did you mean `ranks` or `ranks_per_node`?",
        scale="mini",
    ),
    Bad(
        "figure name that is no file name",
        "question: How?\nfigures:\n- {kind: efficiency, name: ../efficiency}\n",
        "s.yaml:3: figures[0].name: must be a word of lower-case letters, digits and `_`, starting with a letter, "
        "not `../efficiency`",
    ),
    Bad(
        "published numbers that are not there",
        "question: How?\nfigures:\n- {kind: efficiency, reference: nothing}\n",
        "s.yaml:3: figures[0].reference: there is no config/reference/nothing.csv",
    ),
    # YAML.
    Bad("empty file", "", "s.yaml: is empty\n    `scalestudy keys` lists the keys"),
    Bad("file with nothing but a comment", "# later\n", "s.yaml: is empty\n    `scalestudy keys` lists the keys"),
    Bad(
        "list at the top",
        "- question: How?\n",
        "s.yaml:1: is not a map of keys to values\n    write `key: value`; `scalestudy keys` lists them",
    ),
    Bad(
        "key that stands twice",
        "question: How?\nbase:\n  ranks: 1\n  ranks: 2\n",
        "s.yaml:4: base: key `ranks` is here twice\n    keep one of them",
    ),
    Bad(
        "tab for indentation",
        "question: How?\nbase:\n\tranks: 1\n",
        "s.yaml:3: is not valid YAML: a tab is used where spaces are needed\n    indent with spaces",
    ),
    Bad(
        "bracket that is not closed",
        "question: How?\nbase: {ranks: 1\nvary: {}\n",
        "s.yaml:3: is not valid YAML: expected ',' or '}', but got ':'\n    check brackets, quotes and indentation",
    ),
    Bad(
        "colon in bare text",
        "question: How: so?\n",
        "s.yaml:1: is not valid YAML: mapping values are not allowed here\n"
        "    check the indentation, and put text that holds `: ` in quotes",
    ),
    Bad(
        "two documents",
        "question: How?\n---\nquestion: Why?\n",
        "s.yaml:2: is not valid YAML: but found another document\n"
        "    keep one document in the file, without `---` between",
    ),
    Bad(
        "merge key",
        "question: How?\nbase:\n  <<: {ranks: 1}\n",
        "s.yaml:3: base: merge keys (`<<`) are not supported\n    write the keys out, or use scales, which merge",
    ),
    Bad(
        "map for a key",
        "question: How?\nbase:\n  ? {ranks: 1}\n  : 2\n",
        "s.yaml:3: base: only plain text can be a key\n    put the key in quotes",
    ),
    Bad(
        "binary value",
        "question: How?\nbase:\n  model: !!binary aGVsbG8=\n",
        "s.yaml:3: base.model: the tag `!!binary` is not supported\n"
        "    write text, a number, true, false, null, a list or a map",
    ),
    Bad(
        "Python object",
        "question: How?\nbase:\n  model: !!python/object/apply:os.system [ls]\n",
        "s.yaml:3: base.model: the tag `!!python/object/apply:os.system` is not supported\n"
        "    write text, a number, true, false, null, a list or a map",
    ),
    Bad(
        "alias that is not defined",
        "question: How?\nbase: *other\n",
        "s.yaml:2: is not valid YAML: found undefined alias 'other'\n    put text that begins with `*` in quotes",
    ),
    Bad(
        "alias that holds itself",
        "question: How?\nbase: &a\n  model: *a\n",
        "s.yaml:2: is nested more than 30 deep\n    an alias may hold itself",
    ),
    Bad(
        "aliases that multiply to ten thousand million values",
        laughs(10),
        "s.yaml:2: expands to more than 100,000 values\n    aliases multiply; use fewer",
    ),
    Bad(
        "brackets a hundred deep",
        f"question: How?\nbase: {'[' * 100}{']' * 100}\n",
        "s.yaml:2: is nested more than 30 deep\n    an alias may hold itself",
    ),
    Bad(
        "brackets too deep for the parser",
        f"question: How?\nbase: {'[' * 5000}{']' * 5000}\n",
        "s.yaml: is nested more than 30 deep\n    check brackets",
    ),
    Bad(
        "file of a megabyte",
        f"question: How?\n# {'x' * (1 << 20)}\n",
        "s.yaml: is larger than 262,144 bytes\n    is it the right file?",
    ),
    Bad(
        "not a number",
        "question: How?\nbase:\n  optimiser: {learning_rate: .nan}\n",
        "s.yaml:3: base.optimiser.learning_rate: `.nan` is not a finite number\n    give a number",
    ),
    Bad(
        "infinity",
        "question: How?\nbase:\n  optimiser: {learning_rate: -.inf}\n",
        "s.yaml:3: base.optimiser.learning_rate: `-.inf` is not a finite number\n    give a number",
    ),
    Bad(
        "number beyond all bounds",
        "question: How?\nbase:\n  optimiser: {learning_rate: 1e999}\n",
        "s.yaml:3: base.optimiser.learning_rate: `1e999` is not a finite number\n    give a number",
    ),
    Bad(
        "number of five thousand digits",
        f"question: How?\nbase:\n  seed: {'9' * 5000}\n",
        f"s.yaml:3: base.seed: `{'9' * 57}...` cannot be read as a number\n"
        "    write it with fewer digits, or put text in quotes",
    ),
    Bad(
        "zero byte",
        "question: How?\ntitle: a\0b\n",
        "s.yaml:2: holds the control character U+0000\n    is it a text file?",
    ),
    Bad(
        "half of a character",
        'question: "\\ud800"\n',
        "s.yaml:1: question: `\\ud800` holds a character that no file name or text can have",
    ),
    Bad(
        "text that would clear the screen",
        'question: "How?\\e[2J"\n',
        "s.yaml:1: question: `How?\\x1b[2J` holds a control character, on which a terminal or a page could act\n"
        "    leave it out",
    ),
    Bad(
        "key that would clear the screen",
        'question: How?\n"\\e[2J\\n": 1\n',
        "s.yaml:2: `\\x1b[2J\\n` holds a control character, on which a terminal or a page could act\n    leave it out",
    ),
    Bad(
        "stages that do not divide the ranks",
        "question: How?\nbase:\n  ranks: 4\n  strategy: {name: pipeline, stages: 3}\n",
        "s.yaml:4: base.strategy.stages: 4 ranks cannot be divided equally among 3 stages\n"
        "    choose another number, or exclude this combination",
    ),
    Bad(
        "micro-batches that do not divide the batch",
        "question: How?\nbase:\n  ranks: 2\n  strategy: {name: pipeline, stages: 2, micro_batches: 3}\n",
        "s.yaml:4: base.strategy.micro_batches: 64 samples cannot be divided into 3 equal micro-batches\n"
        "    choose another number, or exclude this combination",
    ),
    Bad(
        "a pipeline of emulated compute",
        "question: How?\nbase:\n  model: resnet50\n  strategy: pipeline\n  device: emulated:p100\n",
        "s.yaml:5: base.device: `pipeline` exchanges inside the layers, of which an emulated accelerator has none\n"
        "    use a real device, or exclude this combination",
    ),
    # Several at once.
    Bad(
        "several errors",
        "question: 5\nbse: {}\nrepeats: none\nfigures:\n- {kind: lnes}\n",
        "s.yaml:1: question: must be text, not `5`\n    put it in quotes\n"
        "s.yaml:2: bse: unknown key `bse`\n    did you mean `base`?\n"
        "s.yaml:3: repeats: must be a whole number, not `none`\n"
        "s.yaml:5: figures[0].kind: `lnes` is not valid here\n    did you mean `lines`?",
    ),
    Bad(
        "several combinations that are impossible",
        "question: How?\nbase: {strategy: single, batch: {global: 9}}\nvary:\n  ranks:\n  - 2\n  - 3\n",
        "s.yaml:5: vary.ranks[0]: strategy `single` has at most 1 rank, not 2\n"
        "    choose another strategy, or exclude this combination\n"
        "s.yaml:2: base.batch.global: 9 samples cannot be divided equally among 2 ranks\n"
        "    choose another number, or exclude this combination\n"
        "s.yaml:6: vary.ranks[1]: strategy `single` has at most 1 rank, not 3\n"
        "    choose another strategy, or exclude this combination",
    ),
]
