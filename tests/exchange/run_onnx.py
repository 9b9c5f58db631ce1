"""Nets as ONNX, run by onnxruntime: python3 run_onnx.py FOLDER

FOLDER holds what onnx.c has written, and its words in "nets". Each check leaves FOLDER/results/NN: its name, and "ok" or what
went wrong. Outputs must agree with dtrain's to 1e-5, or to 1e-5 of the largest if that is above 1.
"""
import os
import sys

import numpy as np
import onnx
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(uint8)": np.uint8}
worst = 0.0


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check(folder, name, n, inputs, outputs):
    global worst
    path = os.path.join(folder, name)
    model = onnx.load(path + ".onnx")
    onnx.checker.check_model(model, full_check=True)
    run = session(path + ".onnx")
    assert len(run.get_inputs()) == inputs and len(run.get_outputs()) == outputs
    assert run.get_inputs()[0].name == "input" and run.get_outputs()[0].name == "output"
    x = {}
    for k, port in enumerate(run.get_inputs()):
        assert port.shape[0] == "N", port.shape
        x[port.name] = np.fromfile("%s.x%d" % (path, k), TYPES[port.type]).reshape([n] + port.shape[1:])
    for rows in (n, 1):
        got = run.run(None, {key: value[:rows] for key, value in x.items()})
        for k, port in enumerate(run.get_outputs()):
            want = np.fromfile("%s.y%d" % (path, k), np.float32).reshape([n] + port.shape[1:])[:rows]
            assert got[k].shape == want.shape, (got[k].shape, want.shape)
            off = float(np.max(np.abs(got[k] - want)) / max(1, np.max(np.abs(want))))
            worst = max(worst, off)
            if os.environ.get("VERBOSE"):
                print("  %s, %d samples: %g off" % (port.name, rows, off))
            assert off <= 1e-5, "output %d, %s, is %g off" % (k, port.name, off)
    if os.environ.get("VERBOSE"):
        nodes = [node.op_type for node in model.graph.node]
        print(name, len(nodes), "nodes,", nodes.count("Transpose"), "Transpose")


def main(folder):
    os.makedirs(os.path.join(folder, "results"))
    with open(os.path.join(folder, "nets")) as f:
        lines = f.read().split("\n")[:-1]
    assert lines
    for i, line in enumerate(lines):
        name, *numbers = line.split()
        try:
            check(folder, name, *map(int, numbers))
            said = "ok"
        except Exception as e:
            said = "%s: %s" % (type(e).__name__, e)
        with open(os.path.join(folder, "results", "%02d" % i), "w") as f:
            f.write("ONNX: %s\n%s\n" % (name.replace("_", " "), said))
    print("largest difference %g" % worst)


main(sys.argv[1])
