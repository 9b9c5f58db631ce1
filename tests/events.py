"""TensorBoard reads what examples/events.h writes: python3 events.py PROGRAM FOLDER

PROGRAM is tests/events.c, which writes runs to FOLDER/runs and stops while a file is open. They are read by tensorboard's own
loaders, compared with the messages that its own functions make, and asked of its server over HTTP, with both of its loaders.
Each check leaves FOLDER/results/NN: its name, and "ok" or what went wrong. numpy and tensorboard are needed, tensorflow is not.
"""
import json
import os
import re
import subprocess
import sys
import time
import traceback
import urllib.parse
import urllib.request

import numpy as np
from tensorboard.backend.event_processing import event_file_loader, plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.histogram import summary_v2 as histogram_summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams import summary_v2 as hparams_summary
from tensorboard.plugins.text import summary_v2 as text_summary
from tensorboard.util import tensor_util

ODD = "often \"odd\" <tag> \u00e4\U0001f331"
ABOUT = "# A run\n\nwith a **table**:\n\n| name | value |\n|---|---|\n| rate | 0.001 |\n| \u00e4 | \U0001f331 |\n"
VALUES = {"learning_rate": 0.001, "batch": 128.0, "optimizer": "adam", "shuffle": True, "schedule": "cosine"}
results = 0


def check(folder, test, *arguments):
    global results
    try:
        test(*arguments)
        said = "ok"
    except Exception:
        said = traceback.format_exc()
    with open(os.path.join(folder, "results", "%02d" % results), "w") as f:
        f.write("%s\n%s\n" % (test.__doc__, said))
    results += 1


def load(run):
    return EventAccumulator(run, size_guidance={"scalars": 0, "tensors": 0}).Reload()


def close(got, want):
    assert np.allclose(got, want, rtol=1e-6, atol=0), (got, want)


def events(path):
    return list(event_file_loader.LegacyEventFileLoader(path).Load())


def same_value(ours, theirs):
    """Ours says its data class at once, which the loader would have to work out; else they are equal."""
    theirs.metadata.data_class = 2
    assert tensor_util.make_ndarray(ours.tensor).tolist() == tensor_util.make_ndarray(theirs.tensor).tolist()
    contents = [plugin_data_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content) for value in (ours, theirs)]
    assert ours.metadata.plugin_data.plugin_name != "hparams" or contents[0] == contents[1], contents  # a map has no order
    for value in (ours, theirs):
        value.ClearField("tensor")
        value.metadata.plugin_data.ClearField("content")
    assert ours == theirs, "%s\n%s" % (ours, theirs)


def scalars(run, weights):
    "scalars, while the file is open"
    seen = load(run)
    assert sorted(seen.Tags()["scalars"]) == sorted(["loss/train", "loss/eval", "learning_rate", ODD, "not finite"]), seen.Tags()
    assert [s.step for s in seen.Scalars("loss/train")] == list(range(201))
    assert [s.step for s in seen.Scalars("loss/eval")] == list(range(0, 201, 10))
    close([s.value for s in seen.Scalars(ODD)], range(201))
    close([s.value for s in seen.Scalars("learning_rate")], 0.001 * (1 + np.cos(3.14159265 * np.arange(201) / 300)))
    bad = {s.step: s.value for s in seen.Scalars("not finite")}
    assert 0 not in bad and 2 not in bad and 200 not in bad  # NaN
    assert bad[50] == np.inf and bad[100] == -np.inf and bad[150] == np.inf and bad[1] == 1
    assert abs(seen.FirstEventTimestamp() - time.time()) < 600 and seen.file_version == 2.0


def histograms(run, weights):
    "histograms: the buckets are those of TensorBoard's own summary of the same values"
    seen = load(run)
    got = seen.Tensors("dense/weight")
    assert [t.step for t in got] == list(range(0, 201, 20))
    for k, t in enumerate(got):
        finite = weights[k][np.isfinite(weights[k])]
        assert len(finite) == (3997 if t.step == 40 else 4000)
        ours = tensor_util.make_ndarray(t.tensor_proto)
        theirs = tensor_util.make_ndarray(histogram_summary.histogram_pb("dense/weight", finite).value[0].tensor)
        assert ours.dtype == theirs.dtype == np.float64 and ours.shape == (30, 3)
        assert (ours[:, 2] == theirs[:, 2]).all(), (ours - theirs)
        assert ours[:, 2].sum() == len(finite) and ours[0, 0] == finite.min() and ours[-1, 1] == finite.max()
        np.testing.assert_allclose(ours[:, :2], theirs[:, :2], rtol=1e-12, atol=1e-12)
    for tag, values in (("same", [5.0] * 3), ("nothing", [])):
        ours = tensor_util.make_ndarray(seen.Tensors(tag)[0].tensor_proto)
        assert (ours == tensor_util.make_ndarray(histogram_summary.histogram_pb(tag, values).value[0].tensor)).all()
    assert seen.SummaryMetadata("same").plugin_data.plugin_name == "histograms"


def messages(run, weights):
    "every message is the one that TensorBoard's own functions make"
    path, = [os.path.join(run, name) for name in os.listdir(run)]
    values = {value.tag: (event, value) for event in reversed(events(path)) for value in event.summary.value}
    same_value(values["same"][1], histogram_summary.histogram_pb("same", [5.0] * 3).value[0])
    same_value(values["about"][1], text_summary.text_pb("about", ABOUT).value[0])
    event, start = values["_hparams_/session_start_info"]
    ours = plugin_data_pb2.HParamsPluginData.FromString(start.metadata.plugin_data.content)
    same_value(start, hparams_summary.hparams_pb(VALUES, "first", ours.session_start_info.start_time_secs).value[0])
    assert abs(ours.session_start_info.start_time_secs - event.wall_time) < 1
    _, experiment = values["_hparams_/experiment"]
    ours = metadata.parse_experiment_plugin_data(experiment.metadata.plugin_data.content)
    assert [m.name.tag for m in ours.metric_infos] == ["loss/eval"]
    kind = {bool: api_pb2.DATA_TYPE_BOOL, float: api_pb2.DATA_TYPE_FLOAT64, str: api_pb2.DATA_TYPE_STRING}
    assert [(h.name, h.type) for h in ours.hparam_infos] == [(name, kind[type(v)]) for name, v in VALUES.items()]


def resumed(run, weights):
    "a resumed run: points that it makes again are dropped, those before stay"
    assert len(os.listdir(run)) == 2
    seen = load(run)
    got = seen.Scalars("loss/train")
    assert [s.step for s in got] == list(range(301))
    assert all((s.value > 900) == (121 <= s.step <= 125) for s in got)
    seen = plugin_event_accumulator.EventAccumulator(run, size_guidance={"tensors": 0}).Reload()  # the server's, to which all are tensors
    assert [t.step for t in seen.Tensors("loss/train")] == list(range(301))
    assert [t.step for t in seen.Tensors("dense/weight")] == list(range(0, 301, 20))
    assert [t.step for t in seen.Tensors("about")] == [0]


def live(accumulator):
    "a reader that was there before goes on with the new file"
    accumulator.Reload()
    assert [s.step for s in accumulator.Scalars("loss/train")] == list(range(301))


class Server:
    def __init__(self, folder, runs, fast):
        self.log = open(os.path.join(folder, "server-%s-%s" % (runs, fast)), "w+")
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", os.path.join(folder, runs), "--port", "0", "--load_fast", fast,
                   "--reload_interval", "1", "--samples_per_plugin", "scalars=1000,histograms=1000"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        end = time.time() + 60
        self.url = None
        while not self.url and time.time() < end and self.process.poll() is None:
            time.sleep(0.2)
            self.log.seek(0)
            found = re.search(r"http://\S+:\d+/", self.log.read())
            self.url = found and found.group(0)
        assert self.url, "TensorBoard does not start: see " + self.log.name

    def ask(self, path, body=None, **query):
        url = self.url + "data/plugin/" + path + ("?" + urllib.parse.urlencode(query) if query else "")
        data = json.dumps(body).encode() if body is not None else None
        with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=30) as answer:
            text = answer.read().decode()
        return json.loads(text) if text[:1] in "[{" else text

    def wait(self, done):
        end = time.time() + 60
        while not done() and time.time() < end:
            time.sleep(0.3)

    def hparams(self, names, metrics):
        experiment = self.ask("hparams/experiment", {"experimentName": "", "hparamsLimit": 0, "includeMetrics": True})
        assert sorted(h["name"] for h in experiment["hparamInfos"]) == sorted(names), experiment
        assert sorted(m["name"]["tag"] for m in experiment["metricInfos"]) == sorted(metrics), experiment
        request = {"experimentName": "", "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"], "startIndex": 0, "sliceSize": 100,
                   "colParams": [{"hparam": name} for name in names] + [{"metric": {"group": "", "tag": tag}} for tag in metrics], "aggregationType": "AGGREGATION_AVG"}
        return {g["name"]: g for g in self.ask("hparams/session_groups", request)["sessionGroups"]}

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


def served(server):
    "the server shows scalars, histograms and texts"
    server.wait(lambda: "third" in server.ask("scalars/tags") and len(server.ask("scalars/scalars", run="third", tag="loss/train")) == 301)
    tags = server.ask("scalars/tags")
    assert sorted(tags) == ["first", "second", "third"] and ODD in tags["first"], tags
    points = server.ask("scalars/scalars", run="first", tag="loss/train")
    assert [p[1] for p in points] == list(range(301)) and all((p[2] > 900) == (121 <= p[1] <= 125) for p in points)
    assert [p[1:] for p in server.ask("scalars/scalars", run="second", tag=ODD)] == [[k, k] for k in range(301)]
    histograms = server.ask("histograms/histograms", run="first", tag="dense/weight")
    assert [h[1] for h in histograms] == list(range(0, 301, 20)), [h[1] for h in histograms]
    assert [sum(bucket[2] for bucket in h[2]) for h in histograms] == [3997 if h[1] == 40 else 4000 for h in histograms]
    html = server.ask("text/text", run="first", tag="about")[0]["text"]
    assert "<h1>A run</h1>" in html and "<td>\U0001f331</td>" in html, html


def table(server):
    "the server shows the table of hyperparameters"
    groups = server.hparams(VALUES, ["loss/eval"])
    assert sorted(groups) == ["first", "second", "third"], groups
    assert groups["first"]["hparams"] == VALUES, groups["first"]
    assert groups["third"]["hparams"] == {"learning_rate": 0.1, "batch": 32, "optimizer": "sgd", "shuffle": True, "schedule": "none"}
    assert [g["sessions"][0]["status"] for _, g in sorted(groups.items())] == ["STATUS_SUCCESS", "STATUS_SUCCESS", "STATUS_FAILURE"]
    for group in groups.values():
        assert group["metricValues"][0]["trainingStep"] == 300 and 0 < group["metricValues"][0]["value"] < 1, group


def without_metrics(server):
    "hyperparameters without metrics: the names and scalars of all runs"
    server.wait(lambda: len(server.ask("scalars/tags")) == 2)
    groups = server.hparams(["depth", "width", "dropout"], ["loss/train", "loss/eval"])
    assert sorted(groups) == ["first", "second"], groups  # the folders' names
    assert groups["first"]["hparams"] == {"depth": 3, "width": 64} and groups["second"]["hparams"] == {"depth": "deep", "dropout": 0.5}, groups
    assert [m["value"] for m in groups["second"]["metricValues"]] == [0.25, 0.5], groups["second"]


def main(program, folder):
    os.makedirs(os.path.join(folder, "results"))
    with open(os.path.join(folder, "said"), "wb") as said:
        writer = subprocess.Popen([program, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
    first = os.path.join(folder, "runs", "first")
    assert writer.stdout.readline() == b"open\n"
    weights = np.fromfile(os.path.join(folder, "weights"), "<f4").reshape(-1, 4000)
    for test in (scalars, histograms, messages):
        check(folder, test, first, weights)
    accumulator = load(first)
    writer.stdin.write(b"\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == b"resumed\n"
    check(folder, resumed, first, weights)
    check(folder, live, accumulator)
    out, _ = writer.communicate(b"\n")
    assert writer.returncode == 0 and not out, out
    for runs, fast, tests in (("runs", "false", (served, table)), ("runs", "true", (served, table)), ("more", "true", (without_metrics,))):
        server = Server(folder, runs, fast)
        try:
            for test in tests:
                test.__doc__ = test.__doc__.split(" (--")[0] + " (--load_fast %s)" % fast
                check(folder, test, server)
        finally:
            server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
