"""Weights between PyTorch and dtrain, in both directions: python3 exchange.py PROGRAM FOLDER

PROGRAM is exchange.c, FOLDER is for scratch files. Each check leaves FOLDER/results/NN: its name, and "ok" or what went
wrong. Outputs must agree to 1e-5 of the largest; values that only travel must be the same bits.
"""
import os
import subprocess
import sys
import traceback

sys.dont_write_bytecode = True
import numpy as np
import safetensors
import safetensors.numpy
import safetensors.torch
import torch

from models import MODELS, batch, trained

torch.set_num_threads(1)
PROGRAM, FOLDER = sys.argv[1:3]
TOLERANCE = 1e-5
SAMPLES = 37  # more than a batch of exchange.c, and odd
results = os.path.join(FOLDER, "results")
os.makedirs(results, exist_ok=True)
count = 0


def check(name, function):
    global count
    count += 1
    try:
        said = function() or ""
        text = "ok\n" + said
    except Exception:
        text = traceback.format_exc()
    with open(os.path.join(results, "%02d" % count), "w") as f:
        f.write(name + "\n" + text + "\n")


def at(name):
    return os.path.join(FOLDER, name)


def program(*arguments, fails=False):
    run = subprocess.run([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    assert (run.returncode != 0) == fails, "%s: status %d\n%s" % (" ".join(map(str, arguments)), run.returncode, run.stderr)
    return run.stderr if fails else run.stdout


def counts(text):
    """loaded, missing, unexpected, misshaped of each load"""
    return [tuple(map(int, line.split())) for line in text.splitlines()]


def samples(net):
    x = batch(net, SAMPLES, 99)
    raw = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
    raw.contiguous().numpy().astype("<i4" if net.tokens else "<f4").tofile(at("x"))
    return x


def same_outputs(net, x):
    with torch.no_grad():
        want = net.double()(x if net.tokens else x.double()).numpy()
    got = np.fromfile(at("y"), "<f4").reshape(want.shape).astype("f8")
    difference = np.abs(got - want).max() / np.abs(want).max()
    assert difference <= TOLERANCE, "the outputs differ by %.1e of the largest" % difference
    return "largest difference %.1e" % difference


def dumped(path):
    """What dt_parameter_read gave, by name."""
    values, tensors, used = np.fromfile(path, "<f4"), {}, 0
    for line in open(path + ".txt"):
        name, *shape = line.split()
        shape = tuple(map(int, shape))
        tensors[name] = values[used:used + int(np.prod(shape))].reshape(shape)
        used += tensors[name].size
    assert used == values.size
    return tensors


def same_tensors(got, want):
    """Same names and bits; PyTorch's counter of batches is nobody else's."""
    want = {k: v for k, v in want.items() if not k.endswith("num_batches_tracked")}
    assert set(got) == set(want), set(got) ^ set(want)
    for name, w in want.items():
        g = np.ascontiguousarray(got[name], "<f4")
        w = np.ascontiguousarray(w.float().numpy() if isinstance(w, torch.Tensor) else w, "<f4")
        assert g.shape == w.shape, "%s is %s, expected %s" % (name, g.shape, w.shape)
        nan = np.isnan(w)
        assert (np.isnan(g) == nan).all() and (g.view("<u4") == w.view("<u4"))[~nan].all(), "%s has other values" % name


def from_pytorch(name):
    def run():
        net = trained(name, 1)
        x, state = samples(net), net.state_dict()
        safetensors.torch.save_file(state, at("pytorch"))
        said = counts(program(name, "--load", at("pytorch"), "--predict", at("x"), at("y"), "--dump", at("dump"), "--save", at("again")))
        n = sum(not k.endswith("num_batches_tracked") for k in state)
        assert said == [(n, 0, 0, 0)], said
        same_tensors(dumped(at("dump")), state)
        same_tensors(safetensors.numpy.load_file(at("again")), state)  # there and back
        return same_outputs(net, x)
    return run


def to_pytorch(name):
    def run():
        net = MODELS[name]()
        x = samples(net)
        program(name, "--train", 5, "--save", at("dtrain"), "--predict", at("x"), at("y"), "--dump", at("dump"))
        state = safetensors.torch.load_file(at("dtrain"))
        for k, v in state.items():
            if k.endswith("running_var"):
                assert (v - 1).abs().max() > 0.05, k + " is still what it was"
        assert not any(safetensors.torch.load_model(MODELS[name](), at("dtrain"), strict=True))  # nothing missing, nothing unexpected
        net.load_state_dict(state, strict=True)
        return same_outputs(net.eval(), x)
    return run


def as_others_see_it(name):
    def run():
        program(name, "--train", 2, "--save", at("dtrain"), "--dump", at("dump"))
        want = dumped(at("dump"))
        same_tensors(safetensors.numpy.load_file(at("dtrain")), want)
        same_tensors(safetensors.numpy.load(open(at("dtrain"), "rb").read()), want)
        for framework in "numpy", "pt":
            with safetensors.safe_open(at("dtrain"), framework=framework) as f:
                assert f.metadata()["format"] == "pt" and f.metadata()["dtrain.version"], f.metadata()
                same_tensors({k: np.asarray(f.get_tensor(k)) for k in f.keys()}, want)
                for k in f.keys():
                    part = f.get_slice(k)
                    assert part.get_dtype() == "F32" and tuple(part.get_shape()) == want[k].shape
                    assert (np.asarray(part[:1]) == want[k][:1]).all()
    return run


def number_types(name, *types):
    """A file of F16, BF16, or one type after another; the model then holds these values exactly."""
    def run():
        net = trained(name, 2)
        state = {}
        for i, (k, v) in enumerate(net.state_dict().items()):
            state[k] = v.to(types[i % len(types)]) if v.is_floating_point() else v
        special = torch.tensor([65504, -65504, 6e-8, -6.1e-5, 3e-6, -0.0, 1 / 3, 1e-40, 2 ** -14, float("inf"), -float("inf"), float("nan")])
        for k, v in state.items():
            if v.dim() == 1 and v.numel() >= len(special) and v.is_floating_point() and "var" not in k:
                v[:len(special)] = special.to(v.dtype)
                break
        safetensors.torch.save_file(state, at("types"))
        program(name, "--load", at("types"), "--dump", at("dump"))
        same_tensors(dumped(at("dump")), state)
        net = trained(name, 2)
        state = {k: v.to(types[i % len(types)]) if v.is_floating_point() else v for i, (k, v) in enumerate(net.state_dict().items())}
        safetensors.torch.save_file(state, at("types"))
        x = samples(net)
        program(name, "--load", at("types"), "--predict", at("x"), at("y"))
        net.load_state_dict(state)
        return same_outputs(net, x)
    return run


def refused_type():
    safetensors.torch.save_file(trained("mlp", 1).double().state_dict(), at("double"))
    said = program("mlp", "--load", at("double"), fails=True)
    assert "F64" in said and "fc1" in said, said


def refused_net():
    """Another net's file: the first difference is named."""
    safetensors.torch.save_file(trained("mlp", 1).state_dict(), at("other"))
    said = program("cnn", "--load", at("other"), fails=True)
    assert "conv1.weight" in said, said
    state = trained("cnn", 1).state_dict()
    state["fc1.weight"] = state["fc1.weight"][:, :-1].contiguous()
    safetensors.torch.save_file(state, at("other"))
    said = program("cnn", "--load", at("other"), fails=True)
    assert "fc1.weight" in said and "[11,35]" in said and "[11,36]" in said, said
    state = trained("cnn", 1).state_dict()
    safetensors.torch.save_file({**state, "extra.weight": torch.zeros(3)}, at("other"))
    assert "extra.weight" in program("cnn", "--load", at("other"), fails=True)


def shards(name):
    """As Hugging Face cuts large models: each file holds a part of the tensors."""
    def run():
        net = trained(name, 3)
        x, state, paths = samples(net), net.state_dict(), []
        real = [k for k in state if not k.endswith("num_batches_tracked")]
        for i in range(3):
            paths.append(at("model-0000%d-of-00003.safetensors" % (i + 1)))
            safetensors.torch.save_file({k: state[k] for j, k in enumerate(state) if j * 3 // len(state) == i}, paths[-1], metadata={"format": "pt", "teil": "Stück %d" % i})
        assert "has no tensor" in program(name, "--load", paths[0], fails=True)
        said = counts(program(name, "--partial", *sum((["--load", p] for p in paths), []), "--predict", at("x"), at("y"), "--dump", at("dump")))
        assert sum(s[0] for s in said) == len(real) and all(s[0] + s[1] == len(real) and s[2:] == (0, 0) for s in said), said
        same_tensors(dumped(at("dump")), state)
        return same_outputs(net, x)
    return run


def prefix(name):
    """As DataParallel and torch.compile name things."""
    def run():
        net = trained(name, 4)
        x = samples(net)
        state = {"module._orig_mod." + k: v for k, v in net.state_dict().items()}
        safetensors.torch.save_file({**state, "optimizer.step": torch.tensor(7)}, at("prefix"))
        program(name, "--load", at("prefix"), fails=True)
        said = counts(program(name, "--prefix", "module._orig_mod.", "--load", at("prefix"), "--predict", at("x"), at("y"), "--dump", at("dump")))
        assert len(said) == 1 and said[0][1:] == (0, 0, 0), said
        same_tensors(dumped(at("dump")), net.state_dict())
        return same_outputs(net, x)
    return run


def new_head():
    """Fine-tuning: all but the head of another width comes from a file, in three ways."""
    old = trained("cnn", 5)
    state = old.state_dict()
    body = {k: v for k, v in state.items() if not k.startswith("fc2")}
    safetensors.torch.save_file({**body, "fc2.weight": torch.ones(9, 11), "fc2.bias": torch.ones(9)}, at("head"))
    program("cnn", "--dump", at("fresh"))
    want = {**{k: v for k, v in dumped(at("fresh")).items() if k.startswith("fc2")}, **body}
    n = sum(not k.endswith("num_batches_tracked") for k in body)
    parts = sum((["--glob", g, "--load", at("head")] for g in ("conv*", "norm.*", "fc1.*")), [])
    for flags, said in ((["--partial", "--load", at("head")], [(n, 0, 0, 2)]), (["--without", "fc2", "--load", at("head")], [(n, 0, 0, 0)]), (parts, [(5, 0, 0, 0), (4, 0, 0, 0), (2, 0, 0, 0)])):
        got = counts(program("cnn", *flags, "--dump", at("dump")))
        assert got == said, got
        same_tensors(dumped(at("dump")), want)


for name in MODELS:
    check("%s from PyTorch" % name, from_pytorch(name))
    check("%s to PyTorch" % name, to_pytorch(name))
for name in "cnn", "tokens":
    check("%s as safetensors and safe_open see it" % name, as_others_see_it(name))
for name in "mlp", "resnet20":
    check("%s in F16" % name, number_types(name, torch.float16))
    check("%s in BF16" % name, number_types(name, torch.bfloat16))
check("cnn in F32, F16 and BF16", number_types("cnn", torch.float32, torch.float16, torch.bfloat16))
check("F64 is refused by name", refused_type)
check("another net's file is refused by name", refused_net)
check("resnet20 in three files", shards("resnet20"))
check("tokens in three files", shards("tokens"))
check("cnn behind a prefix", prefix("cnn"))
check("all but the head", new_head)
