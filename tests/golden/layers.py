"""Writes layers.h: every operation with its options, further losses, schedules and small trainings, by PyTorch in
double precision on the CPU.

    python3 layers.py > layers.h

Inputs, parameters and gradients put on the output are not stored: both sides draw them from the same generator, in
the order input, further input, parameters, gradient of the output. What is stored is what PyTorch makes of them:
output, output in inference where it differs, gradient of the input, and gradient of each parameter (of the sum of
output * gradient over the batch); of a running statistic the value after the step.

Activations are channels last, as dtrain.h has them; parameters have PyTorch's shapes and order.
"""
import inspect
import math
import re
import warnings

import torch
import torch.nn.functional as F

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
warnings.filterwarnings("ignore", message="Using padding='same'")


class Draw:
    """Numbers in -1 .. 1 with 24 bits, so that float32 holds them; offset and factor must keep that so."""

    def __init__(self, seed):
        self.state = seed

    def one(self):
        self.state = (self.state * 1664525 + 1013904223) & 0xFFFFFFFF
        return (self.state >> 8) / 8388608 - 1

    def floats(self, shape, offset=0.0, factor=1.0, quarters=False):
        values = [offset + factor * self.one() for _ in range(math.prod(shape))]
        if quarters:
            values = [math.floor(v * 4) / 4 for v in values]
        t = torch.tensor(values).float().double()
        return t.reshape(shape)

    def tokens(self, shape, n):
        return torch.tensor([int((self.one() + 1) / 2 * n) for _ in range(math.prod(shape))]).reshape(shape)


# ---- operations on channels-last tensors --------------------------------------------------------------------------

def image(x):
    return x.permute(0, 3, 1, 2)


def back(y):
    return y.permute(0, 2, 3, 1)


def dense(x, p, name="d"):
    return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))


def conv(x, p, name="c", same=False, stride=1, padding=0, dilation=1, groups=1):
    weight = p[name + ".weight"]
    x = image(x)
    if same:  # the rule of TensorFlow: ceil(in / stride) outputs, an odd zero below and to the right
        pads = []
        for axis in (3, 2):
            extent, size = dilation * (weight.shape[axis] - 1) + 1, x.shape[axis]
            total = max((-(-size // stride) - 1) * stride + extent - size, 0)
            pads += [total // 2, total - total // 2]
        if stride == 1:  # where PyTorch knows "same" as well, it is the same
            return back(F.conv2d(x, weight, p.get(name + ".bias"), 1, "same", dilation, groups))
        x = F.pad(x, pads)
    return back(F.conv2d(x, weight, p.get(name + ".bias"), stride, padding, dilation, groups))


def maxpool(x, size, **options):
    return back(F.max_pool2d(image(x), size, **options))


def avgpool(x, size, **options):
    return back(F.avg_pool2d(image(x), size, count_include_pad=False, **options))


def flatten(x):
    """As PyTorch's Flatten on [n, c, h, w]."""
    return image(x).flatten(1)


def batchnorm(x, p, training, name="n", momentum=0.1, epsilon=1e-5):
    channels_second = x.movedim(-1, 1)
    y = F.batch_norm(channels_second, p[name + ".running_mean"], p[name + ".running_var"], p[name + ".weight"], p[name + ".bias"], training, momentum, epsilon)
    return y.movedim(1, -1)


def layernorm(x, p, name="l", epsilon=1e-5):
    return F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p.get(name + ".bias"), epsilon)


def relu(x):
    assert float(x.detach().abs().min()) > 1e-4, "a value so close to the corner of relu that rounding decides"
    return F.relu(x)


# ---- parameters ------------------------------------------------------------------------------------------------------

def dense_p(units, inputs, name="d", bias=True):
    p = [(name + ".weight", (units, inputs), 0, 0.5)]
    return p + [(name + ".bias", (units,), 0, 0.25)] if bias else p


def conv_p(filters, channels, kernel, kernel_w=0, name="c", bias=True):
    p = [(name + ".weight", (filters, channels, kernel, kernel_w or kernel), 0, 0.5)]
    return p + [(name + ".bias", (filters,), 0, 0.25)] if bias else p


def layernorm_p(c, name="l", bias=True):
    p = [(name + ".weight", (c,), 1, 0.25)]
    return p + [(name + ".bias", (c,), 0, 0.25)] if bias else p


def batchnorm_p(c, name="n"):
    return layernorm_p(c, name) + [(name + ".running_mean", (c,), 0, 0.25), (name + ".running_var", (c,), 1, 0.5)]


# ---- cases -------------------------------------------------------------------------------------------------------------

cases = []


def case(name, function, shape, parameters=(), n=3, offset=0.0, factor=2.0, quarters=False, tokens=0, more=0, dropout=0.0, frozen=False, tolerance=1e-6):
    """function(x, p) or function(x, p, training), with further input as p["more"]; shape without the batch.
    tolerance: in units of a tensor's largest value; more than 1e-6 where sums cancel, and PyTorch's own float32 errs as much.
    """
    draw = Draw(len(cases) * 7919 + 12345)
    with_mode = len(inspect.signature(function).parameters) == 3
    x = draw.tokens((n,) + shape, tokens) if tokens else draw.floats((n,) + shape, offset, factor, quarters)
    p, more_values = {}, draw.floats((n, more)) if more else None
    for parameter, size, o, f in parameters:
        p[parameter] = draw.floats(size, o, f)

    def run(training):
        given = {k: v.clone().requires_grad_(not frozen and "running" not in k) for k, v in p.items()}
        if more:
            given["more"] = more_values
        leaf = x.clone().requires_grad_(not tokens)
        return leaf, given, function(leaf, given, training) if with_mode else function(leaf, given)

    leaf, given, y = run(True)
    dy = draw.floats(y.shape)
    (y * dy).sum().backward()
    y_inference = run(False)[2] if with_mode else None
    found = [(k, size, o, f, given[k] if "running" in k or frozen else given[k].grad) for k, size, o, f in parameters]
    cases.append(dict(name=name, n=n, shape=shape, offset=offset, factor=factor, quarters=quarters, tokens=tokens, more=more, dropout=dropout, frozen=frozen, tolerance=tolerance,
                      y=y, y_inference=y_inference, dx=leaf.grad, parameters=found))


# dense
case("dense", lambda x, p: dense(x, p), (9,), dense_p(7, 9))
case("dense 3-D", lambda x, p: dense(x, p), (4, 9), dense_p(7, 9))
case("dense 4-D no_bias", lambda x, p: dense(x, p), (2, 3, 5), dense_p(4, 5, bias=False))
case("dense no_bias", lambda x, p: dense(x, p), (9,), dense_p(7, 9, bias=False))
case("dense to 1", lambda x, p: dense(x, p), (9,), dense_p(1, 9))
case("dense 33 to 9", lambda x, p: dense(x, p), (33,), dense_p(9, 33))
case("dense shared", lambda x, p: dense(torch.tanh(dense(x, p)), p), (6,), dense_p(6, 6))
case("dense shared by two branches", lambda x, p: dense(x, p) * dense(torch.sigmoid(x), p), (3, 5), dense_p(4, 5))

# convolution
case("conv 1x1", lambda x, p: conv(x, p), (4, 3, 5), conv_p(4, 5, 1), n=2)
case("conv 3x3", lambda x, p: conv(x, p), (4, 5, 3), conv_p(4, 3, 3), n=2)
case("conv 3x3 no_bias", lambda x, p: conv(x, p), (4, 5, 2), conv_p(3, 2, 3, bias=False), n=2)
case("conv stride 2", lambda x, p: conv(x, p, stride=2), (5, 6, 2), conv_p(3, 2, 3), n=2)
case("conv stride 3 padding 1", lambda x, p: conv(x, p, stride=3, padding=1), (4, 6, 2), conv_p(3, 2, 3), n=1)
case("conv stride 3 kernel 2", lambda x, p: conv(x, p, stride=3), (5, 7, 2), conv_p(3, 2, 2), n=1)
case("conv padding 1", lambda x, p: conv(x, p, padding=1), (4, 5, 2), conv_p(2, 2, 3), n=2)
case("conv padding 3", lambda x, p: conv(x, p, padding=3), (2, 3, 2), conv_p(2, 2, 3), n=1)
case("conv same", lambda x, p: conv(x, p, same=True), (3, 4, 2), conv_p(3, 2, 3), n=2)
case("conv same kernel 2", lambda x, p: conv(x, p, same=True), (4, 5, 2), conv_p(3, 2, 2), n=1)
case("conv same kernel 4", lambda x, p: conv(x, p, same=True), (5, 4, 2), conv_p(2, 2, 4), n=1)
case("conv same kernel 5", lambda x, p: conv(x, p, same=True), (3, 4, 1), conv_p(2, 1, 5), n=1)
case("conv same stride 2 odd", lambda x, p: conv(x, p, same=True, stride=2), (3, 5, 2), conv_p(3, 2, 3), n=2)
case("conv same stride 2 even", lambda x, p: conv(x, p, same=True, stride=2), (6, 4, 2), conv_p(2, 2, 3), n=1)
case("conv same stride 2 kernel 4", lambda x, p: conv(x, p, same=True, stride=2), (5, 6, 2), conv_p(2, 2, 4), n=1)
case("conv same stride 3 kernel 1", lambda x, p: conv(x, p, same=True, stride=3), (7, 5, 2), conv_p(3, 2, 1), n=1)
case("conv same stride 2 dilation 2", lambda x, p: conv(x, p, same=True, stride=2, dilation=2), (6, 5, 2), conv_p(2, 2, 3), n=1)
case("conv dilation 2", lambda x, p: conv(x, p, dilation=2), (5, 6, 2), conv_p(3, 2, 3), n=2)
case("conv dilation 2 same", lambda x, p: conv(x, p, dilation=2, same=True), (4, 6, 2), conv_p(3, 2, 3), n=1)
case("conv dilation 3 padding 2", lambda x, p: conv(x, p, dilation=3, padding=2), (5, 6, 2), conv_p(2, 2, 3), n=1)
case("conv groups 2", lambda x, p: conv(x, p, groups=2), (3, 4, 4), conv_p(6, 2, 3), n=2)
case("conv groups 3 stride 2 padding 1", lambda x, p: conv(x, p, groups=3, stride=2, padding=1), (4, 5, 6), conv_p(3, 2, 3), n=1)
case("conv depthwise", lambda x, p: conv(x, p, groups=5), (3, 4, 5), conv_p(5, 1, 3), n=2)
case("conv depthwise same stride 2", lambda x, p: conv(x, p, groups=3, same=True, stride=2), (5, 4, 3), conv_p(3, 1, 3), n=1)
case("conv depthwise dilation 2 padding 2", lambda x, p: conv(x, p, groups=3, dilation=2, padding=2), (4, 5, 3), conv_p(3, 1, 3, bias=False), n=1)
case("conv depthwise times 2", lambda x, p: conv(x, p, groups=3, padding=1), (4, 4, 3), conv_p(6, 1, 3), n=2)
case("conv kernel_w", lambda x, p: conv(x, p), (4, 6, 2), conv_p(2, 2, 2, 4), n=1)
case("conv kernel_w same", lambda x, p: conv(x, p, same=True), (4, 5, 2), conv_p(2, 2, 1, 5), n=1)
case("conv kernel_w same stride 2", lambda x, p: conv(x, p, same=True, stride=2), (5, 6, 2), conv_p(2, 2, 3, 2), n=1)
case("conv everything", lambda x, p: conv(x, p, stride=2, padding=2, dilation=2, groups=2), (5, 6, 4), conv_p(4, 2, 3, 2, bias=False), n=1)
case("conv 17 to 9", lambda x, p: conv(x, p), (1, 5, 17), conv_p(9, 17, 1, 2), n=2)
case("conv shared", lambda x, p: conv(torch.tanh(conv(x, p, same=True)), p, same=True), (3, 4, 2), conv_p(2, 2, 3), n=2)

# pools
case("maxpool 2", lambda x, p: maxpool(x, 2), (5, 6, 3), n=2)
case("maxpool 3 stride 2", lambda x, p: maxpool(x, 3, stride=2), (6, 7, 2), n=1)
case("maxpool 3 stride 1 padding 1", lambda x, p: maxpool(x, 3, stride=1, padding=1), (4, 5, 2), n=2)
case("maxpool 3 stride 2 padding 1, negative", lambda x, p: maxpool(x, 3, stride=2, padding=1), (5, 6, 2), n=2, offset=-4)
case("maxpool 2 stride 3", lambda x, p: maxpool(x, 2, stride=3), (6, 8, 2), n=1)
case("maxpool ties", lambda x, p: maxpool(x, 3, stride=2, padding=1), (6, 7, 3), n=2, factor=0.5, quarters=True)
case("avgpool 2", lambda x, p: avgpool(x, 2), (3, 4, 3), n=2)
case("avgpool 3 stride 2", lambda x, p: avgpool(x, 3, stride=2), (6, 7, 2), n=1)
case("avgpool 3 stride 1 padding 1", lambda x, p: avgpool(x, 3, stride=1, padding=1), (4, 5, 2), n=2)
case("avgpool 4 stride 3 padding 2", lambda x, p: avgpool(x, 4, stride=3, padding=2), (5, 6, 2), n=1)
case("global_avgpool", lambda x, p: x.mean((1, 2)), (3, 4, 3), n=2)

# the order of features behind a flatten, in files
case("flatten dense", lambda x, p: dense(flatten(x), p), (2, 3, 4), dense_p(3, 24))
case("flatten relu dense", lambda x, p: dense(relu(flatten(x)), p), (2, 3, 2), dense_p(3, 12))
case("flatten twice dense", lambda x, p: dense(flatten(x).flatten(1), p), (2, 3, 2), dense_p(3, 12))
case("flatten layernorm dense", lambda x, p: dense(layernorm(flatten(x), p), p), (2, 3, 2), layernorm_p(12) + dense_p(3, 12))
case("flatten batchnorm dense", lambda x, p, training: dense(batchnorm(flatten(x), p, training), p), (2, 3, 2), batchnorm_p(12) + dense_p(3, 12), n=5)
case("flatten arithmetic dense", lambda x, p: dense(flatten(x) - F.silu(flatten(x)) * torch.tanh(flatten(x)), p), (2, 3, 2), dense_p(3, 12))
case("flatten scale dense", lambda x, p: dense(flatten(x) * 0.5 - 0.25, p), (2, 3, 2), dense_p(3, 12))
case("flatten softmax dense", lambda x, p: dense(torch.softmax(flatten(x), -1), p), (2, 3, 2), dense_p(3, 12))
case("flatten of rows", lambda x, p: dense(x.flatten(1), p), (3, 4), dense_p(3, 12))
case("reshape", lambda x, p: dense(x.reshape(-1, 2, 12), p), (4, 6), dense_p(3, 12))
case("reshape image to rows", lambda x, p: dense(image(x).flatten(2).transpose(1, 2), p), (2, 3, 4), dense_p(3, 4))

# norms
case("batchnorm", lambda x, p, t: batchnorm(x, p, t), (5,), batchnorm_p(5), n=7)
case("batchnorm 3-D", lambda x, p, t: batchnorm(x, p, t), (4, 3), batchnorm_p(3))
case("batchnorm 4-D", lambda x, p, t: batchnorm(x, p, t), (2, 3, 5), batchnorm_p(5))
case("batchnorm options", lambda x, p, t: batchnorm(x, p, t, momentum=0.25, epsilon=0.125), (3, 2, 3), batchnorm_p(3))
case("batchnorm sync", lambda x, p, t: batchnorm(x, p, t), (3, 2, 3), batchnorm_p(3), n=5)
case("batchnorm frozen", lambda x, p: batchnorm(x, p, False), (3, 2, 3), batchnorm_p(3), frozen=True)
case("batchnorm shared", lambda x, p, t: batchnorm(torch.tanh(batchnorm(x, p, t)) + 0.5 * x, p, t), (2, 3), batchnorm_p(3), n=5)
case("layernorm", lambda x, p: layernorm(x, p), (7,), layernorm_p(7))
case("layernorm 3-D", lambda x, p: layernorm(x, p), (4, 5), layernorm_p(5))
case("layernorm 4-D", lambda x, p: layernorm(x, p), (2, 3, 4), layernorm_p(4))
case("layernorm no_bias", lambda x, p: layernorm(x, p), (7,), layernorm_p(7, bias=False))
case("layernorm epsilon", lambda x, p: layernorm(x, p, epsilon=0.125), (3, 6), layernorm_p(6))
case("layernorm of 37", lambda x, p: layernorm(x, p), (37,), layernorm_p(37), n=2)
case("layernorm shared", lambda x, p: layernorm(torch.tanh(layernorm(x, p)), p), (6,), layernorm_p(6))

# embedding
case("embedding", lambda x, p: F.embedding(x, p["e.weight"]), (5,), [("e.weight", (7, 4), 0, 1)], tokens=7)
case("embedding 2-D", lambda x, p: F.embedding(x, p["e.weight"]), (2, 3), [("e.weight", (6, 3), 0, 1)], tokens=6)
case("embedding shared", lambda x, p: F.embedding(x, p["e.weight"]) * torch.tanh(F.embedding(x, p["e.weight"])), (4,), [("e.weight", (5, 3), 0, 1)], tokens=5)

# activations; "far" reaches where they saturate, "at 0" their corners
for far in (2, 32):
    for name, function in (
        ("leaky_relu", lambda x, p: F.leaky_relu(x, 0.125)), ("relu", lambda x, p: F.relu(x)), ("gelu", lambda x, p: F.gelu(x)),
        ("gelu_tanh", lambda x, p: F.gelu(x, approximate="tanh")), ("silu", lambda x, p: F.silu(x)), ("tanh", lambda x, p: torch.tanh(x)),
        ("sigmoid", lambda x, p: torch.sigmoid(x)), ("softmax", lambda x, p: torch.softmax(x, -1)),
    ):
        case(name + (" far" if far > 2 else ""), function, (13,), factor=far, n=4 if far > 2 else 3, tolerance=1e-5 if far > 2 and name == "softmax" else 1e-6)
case("relu at 0", lambda x, p: F.relu(x), (11,), factor=0.5, quarters=True)
case("leaky_relu at 0", lambda x, p: F.leaky_relu(x, 0.25), (11,), factor=0.5, quarters=True)
case("gelu at 0", lambda x, p: F.gelu(x), (11,), factor=0.5, quarters=True)
case("leaky_relu slope 0", lambda x, p: F.leaky_relu(x, 0.0), (11,))
case("softmax 3-D", lambda x, p: torch.softmax(x, -1), (3, 5))
case("softmax 4-D", lambda x, p: torch.softmax(x, -1), (2, 2, 3))
case("dropout", lambda x, p: x / (1 - 0.25), (32,), dropout=0.25)  # what is kept
case("dropout in the middle", lambda x, p, training: x * (torch.tanh(x) / (1 - 0.5) if training else torch.tanh(x)), (32,), dropout=0.5, n=2)

# arithmetic: the two halves of one input, so that both gradients are seen
def halves(function, c=4):
    return lambda x, p: function(x[..., :c], x[..., c:])


case("add", halves(lambda a, b: a + b), (3, 8))
case("sub", halves(lambda a, b: a - b), (3, 8))
case("mul", halves(lambda a, b: a * b), (2, 2, 8))
case("add to itself", lambda x, p: torch.tanh(x) + torch.tanh(x), (7,))
case("mul by itself", lambda x, p: torch.tanh(x) ** 2, (7,))
case("sub from itself", lambda x, p: (x * 3) - x, (7,))
case("scale", lambda x, p: x * -1.5, (2, 3, 3))
case("scale and offset", lambda x, p: x * 0.75 + 2.5, (9,))

# concat, slice, pad
for axis in (1, 2, 3):
    case("concat axis %d" % axis, lambda x, p: torch.cat([torch.tanh(x), x.narrow(axis, 0, 1)], axis), (2, 3, 4), n=2)
case("concat axis -1", lambda x, p: torch.cat([dense(x, p), x], -1), (2, 3), dense_p(4, 3))
case("slice 1", lambda x, p: x[:, 1:4], (6, 3))
case("slice 2 step 2", lambda x, p: x[:, :, 0:5:2], (2, 5, 3))
case("slice 3 to -1", lambda x, p: x[:, :, :, 1:-1], (2, 3, 5))
case("slice -1 step 3 to the end", lambda x, p: x[..., 1::3], (2, 9))
case("slices that overlap", lambda x, p: x[:, 0:4] * x[:, 2:6], (6, 2))
case("pad 1", lambda x, p: F.pad(x, (0, 0, 1, 2)), (3, 4))
case("pad 2", lambda x, p: F.pad(x, (0, 0, 2, 0)), (2, 3, 2))
case("pad -1", lambda x, p: F.pad(x, (1, 3)), (2, 3, 2))

# a second input, and an operation of the user's
case("second input", lambda x, p: torch.cat([torch.tanh(dense(x, p)), p["more"]], 1), (6,), dense_p(4, 6), more=3)
case("custom", lambda x, p: p["u.weight"] * x * x, (5,), [("u.weight", (5,), 0, 1)])


# blocks
def residual(x, p, training):
    y = relu(batchnorm(conv(x, p, "c1", same=True), p, training, "n1"))
    y = batchnorm(conv(y, p, "c2", same=True), p, training, "n2")
    return relu(x + y)


case("residual block", residual, (4, 3, 3), conv_p(3, 3, 3, name="c1", bias=False) + batchnorm_p(3, "n1") + conv_p(3, 3, 3, name="c2", bias=False) + batchnorm_p(3, "n2"),
     n=2, tolerance=4e-6)


def residual_down(x, p, training):  # He et al.'s shortcut A: every second pixel, channels of zeros on both sides
    y = relu(batchnorm(conv(x, p, "c1", stride=2, padding=1), p, training, "n1"))
    y = batchnorm(conv(y, p, "c2", padding=1), p, training, "n2")
    return relu(F.pad(x[:, ::2, ::2], (1, 1)) + y)


case("residual block down", residual_down, (5, 4, 2), conv_p(4, 2, 3, name="c1", bias=False) + batchnorm_p(4, "n1") + conv_p(4, 4, 3, name="c2", bias=False) + batchnorm_p(4, "n2"), n=2)


def separable(x, p, training):
    y = F.silu(batchnorm(conv(x, p, "c1", groups=3, same=True), p, training, "n1"))
    return back(F.avg_pool2d(image(torch.sigmoid(conv(y, p, "c2"))), 2))


case("separable block", separable, (4, 4, 3), conv_p(3, 1, 3, name="c1", bias=False) + batchnorm_p(3, "n1") + conv_p(5, 3, 1, name="c2"), n=2)


def token_block(x, p):
    h = F.embedding(x, p["e.weight"])
    y = dense(F.gelu(dense(layernorm(h, p), p, "d1")), p, "d2")
    return torch.softmax(dense(layernorm(h + y, p, "l2").flatten(1), p, "d3"), -1)


case("token block", token_block, (3,), [("e.weight", (7, 4), 0, 1)] + layernorm_p(4) + dense_p(6, 4, "d1") + dense_p(4, 6, "d2") + layernorm_p(4, "l2") + dense_p(3, 12, "d3"), tokens=7, tolerance=4e-6)


def cnn(x, p):
    x = maxpool(F.gelu(conv(x, p, "c1", padding=1), approximate="tanh"), 2)
    x = F.leaky_relu(dense(flatten(conv(x, p, "c2")), p, "d1"), 0.0625)
    return dense(x, p, "d2")


case("small CNN", cnn, (6, 6, 1), conv_p(4, 1, 3, name="c1") + conv_p(3, 4, 2, name="c2") + dense_p(5, 12, "d1") + dense_p(3, 5, "d2"))

# ---- three steps of batch norm: values, running statistics, inference ----------------------------------------------

bn_steps = []
for name, shape, momentum, epsilon in (("batchnorm", (6,), 0.1, 1e-5), ("batchnorm 4-D", (2, 2, 3), 0.1, 1e-5), ("batchnorm options", (2, 3), 0.25, 0.125)):
    draw = Draw(4711)
    c, n = shape[-1], 5
    p = {k: draw.floats(size, o, f) for k, size, o, f in batchnorm_p(c)}
    p["n.weight"].requires_grad_(True), p["n.bias"].requires_grad_(True)
    ys = []
    for step in range(3):
        x = draw.floats((n,) + shape, step, 2)
        y = batchnorm(x, p, True, momentum=momentum, epsilon=epsilon)
        dy = draw.floats(y.shape)
        p["n.weight"].grad = p["n.bias"].grad = None
        ((y * dy).sum() / n).backward()
        with torch.no_grad():
            for k in ("n.weight", "n.bias"):
                p[k] -= 0.125 * p[k].grad
        ys.append(y.detach())
    ys.append(batchnorm(x, p, False, momentum=momentum, epsilon=epsilon).detach())
    bn_steps.append((name, c, n, shape, torch.stack(ys), torch.cat([p[k].detach() for k, *_ in batchnorm_p(c)])))

# ---- losses that losses.py has not -----------------------------------------------------------------------------------

LN, LT, LC = 4, 3, 4
draw = Draw(99)
loss_x = draw.floats((LN, LT, LC), 0, 4)
loss_targets = draw.floats((LN, LT, LC), 0, 4)
loss_far = draw.floats((LN, LT, LC), 0, 64)
loss_shares = torch.softmax(draw.floats((LN, LT, LC), 0, 2), -1).float().double()
loss_labels = draw.tokens((LN, LT), LC)
loss_class_weights = draw.floats((LC,), 1, 0.5)
loss_sample_weights = draw.floats((LN,), 1, 1)
losses = []


def loss(name, values, weight="samples", x=loss_x):
    """values(x): the loss of each element or label; weight: what the mean divides by; None: a plain sum."""
    leaf = x.clone().requires_grad_(True)
    v = values(leaf)
    total = 1.0 if weight is None else float(LN if weight == "samples" else weight)
    value = v.sum() / total
    value.backward()
    losses.append((name, value.item(), total, leaf.grad))


def over_outputs(v):
    return v.flatten(1).mean(1)


def ce(x, y=loss_labels, **options):
    return F.cross_entropy(x.transpose(1, 2), y.transpose(1, 2) if y.dim() == 3 else y, reduction="none", **options)


sw = loss_sample_weights
loss("mae sum", lambda x: F.l1_loss(x, loss_targets, reduction="none"), None)
loss("mae 3-D", lambda x: over_outputs(F.l1_loss(x, loss_targets, reduction="none")))
loss("huber 3-D delta 2", lambda x: over_outputs(F.huber_loss(x, loss_targets, reduction="none", delta=2.0)))
loss("huber sample weights", lambda x: over_outputs(F.huber_loss(x, loss_targets, reduction="none")) * sw, sw.sum())
loss("huber sum sample weights", lambda x: F.huber_loss(x, loss_targets, reduction="none").flatten(1).sum(1) * sw, None)
loss("mse sum sample weights", lambda x: F.mse_loss(x, loss_targets, reduction="none").flatten(1).sum(1) * sw, None)
loss("bce 3-D soft", lambda x: over_outputs(F.binary_cross_entropy_with_logits(x, loss_shares, reduction="none")))
loss("bce sum sample weights", lambda x: F.binary_cross_entropy_with_logits(x, loss_shares, reduction="none").flatten(1).sum(1) * sw, None)
loss("bce far", lambda x: over_outputs(F.binary_cross_entropy_with_logits(x, loss_shares, reduction="none")), x=loss_far)
loss("bce weight 3", lambda x: 3 * over_outputs(F.binary_cross_entropy_with_logits(x, loss_shares, reduction="none")))
loss("ce far", lambda x: ce(x), LN * LT, x=loss_far)
loss("ce sum smooth", lambda x: ce(x, label_smoothing=0.25), None)
loss("ce sum ignore", lambda x: ce(x, ignore_index=2), None)
loss("ce 3-D everything", lambda x: ce(x, weight=loss_class_weights, label_smoothing=0.25, ignore_index=3) * sw[:, None],
     (loss_class_weights[loss_labels] * (loss_labels != 3) * sw[:, None]).sum())
loss("ce soft 3-D", lambda x: ce(x, loss_shares), LN * LT)
loss("ce soft sum", lambda x: ce(x, loss_shares), None)
loss("ce soft everything", lambda x: ce(x, loss_shares, weight=loss_class_weights, label_smoothing=0.25) * sw[:, None], LT * sw.sum())
loss("ce soft sum sample weights", lambda x: ce(x, loss_shares) * sw[:, None], None)
loss("ce weight 0.5", lambda x: 0.5 * ce(x), LN * LT)
loss("value", lambda x: torch.sigmoid(x).flatten(1).sum(1))
loss("value sum sample weights", lambda x: torch.sigmoid(x).flatten(1).sum(1) * sw, None)
loss("mse to its own detached tanh", lambda x: over_outputs((x - torch.tanh(x).detach()) ** 2))
loss("ce to its own detached softmax", lambda x: ce(x, torch.softmax(0.5 * x, -1).detach()), LN * LT)

# ---- schedules --------------------------------------------------------------------------------------------------------

RATES = 14
schedules = []
for name, make in (
    ("step", lambda o: torch.optim.lr_scheduler.StepLR(o, 4, 0.3)),
    ("exponential", lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5 ** (1 / 5))),
    ("cosine", lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10, 0.01)),
    ("linear", lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.1, 10)),
):
    o = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.2)
    schedule, rates = make(o), []
    for step in range(RATES):
        rates.append(o.param_groups[0]["lr"])
        o.step()
        if name != "cosine" or step < 10:  # PyTorch's cosine rises again behind its end, the others stay
            schedule.step()
    schedules.append((name, rates))

# ---- trainings: every optimizer on one net ---------------------------------------------------------------------------

TN, STEPS = 6, 5
T = torch.optim
trained_p = (conv_p(3, 2, 3, name="c1", bias=False) + batchnorm_p(3, "n1") + conv_p(3, 3, 3, name="c2", bias=False) + batchnorm_p(3, "n2")
             + dense_p(5, 12, "d1") + layernorm_p(5, "l1") + dense_p(3, 5, "d2"))


def trained_net(x, p, training):
    x = F.gelu(batchnorm(conv(x, p, "c1", same=True), p, training, "n1"))
    x = F.silu(x + batchnorm(conv(x, p, "c2", same=True), p, training, "n2"))
    x = flatten(avgpool(x, 2))
    return dense(layernorm(torch.tanh(dense(x, p, "d1")), p, "l1"), p, "d2")


def train(optimizer, clip=0.0, **options):
    draw = Draw(2718)
    p = {k: draw.floats(size, o, f) for k, size, o, f in trained_p}
    free = [v.requires_grad_(True) for k, v in p.items() if "running" not in k]
    o, values = optimizer(free, **options), []
    for step in range(STEPS):
        x, labels = draw.floats((TN, 4, 4, 2), 0, 2), draw.tokens((TN,), 3)
        o.zero_grad()
        value = F.cross_entropy(trained_net(x, p, True), labels, label_smoothing=0.125)
        value.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(free, clip)
        o.step()
        values.append(value.item())
    return values, trained_net(x, p, False).detach(), torch.cat([v.detach().flatten() for v in p.values()])


trainings = [(name, *train(*rest[:-1], **rest[-1])) for name, *rest in (
    ("sgd", T.SGD, dict(lr=0.25)),
    ("momentum", T.SGD, dict(lr=0.125, momentum=0.9, weight_decay=0.0625)),
    ("nesterov clip", T.SGD, 0.5, dict(lr=0.125, momentum=0.875, nesterov=True)),
    ("adam", T.Adam, dict(lr=0.03125)),
    ("adamw", T.AdamW, dict(lr=0.03125, betas=(0.75, 0.9375), weight_decay=0.125)),
    ("rmsprop", T.RMSprop, dict(lr=0.0078125, alpha=0.875, momentum=0.5)),
)]

# ---- output --------------------------------------------------------------------------------------------------------------

def numbers(values):
    """Nine digits of the largest value, and as many decimals of the others."""
    lines, line = [], ""
    largest = max(map(abs, values))
    decimals = max(8 - math.floor(math.log10(largest)), 0) if largest else 0
    for v in values:
        piece = ("%.*f" % (decimals, v)).rstrip("0").rstrip(".")
        piece = re.sub(r"^(-?)0\.", r"\1.", piece).replace("-0", "0") + "," if v else "0,"
        if len(line) + len(piece) > 150:
            lines.append(line)
            line = ""
        line += piece
    return "\n".join(lines + [line])


def c_name(name):
    return "g_" + re.sub(r"[^a-z0-9]+", "_", name.lower().replace("-1", "last")).strip("_")


def array(name, t):
    print("static const double %s[] = {\n%s\n};" % (name, numbers(t.detach().reshape(-1).tolist())))
    return "%s, %d" % (name, t.numel())


print("/* Made by layers.py with PyTorch %s: do not edit. */" % torch.__version__)
print("""typedef struct { const double *value; int n; } golden_array;
/* Drawn as offset + factor * u. expected: the gradient, or the value after the step of a running statistic. */
typedef struct { const char *name; double offset, factor; golden_array expected; } golden_parameter;
typedef struct {
    const char *name;
    int n, shape[4], tokens, more, frozen;  /* samples, shape of one; more: values of the second input; frozen: parameters keep their values */
    double tolerance, dropout, offset, factor;  /* in units of a tensor's largest value; the input is drawn as offset + factor * u, … */
    int quarters;                           /* … and rounded down to quarters */
    golden_array y, y_inference, dx;        /* y_inference: empty if y is the same */
    const golden_parameter *parameter;
    int n_parameters;
} golden_case;
""")
rows = []
for c in cases:
    base = c_name(c["name"])
    none = "NULL, 0"
    y = array(base + "_y", c["y"])
    y_inference = none if c["y_inference"] is None else array(base + "_inference", c["y_inference"])
    dx = none if c["dx"] is None else array(base + "_dx", c["dx"])
    parameters = []
    for i, (name, size, offset, factor, expected) in enumerate(c["parameters"]):
        parameters.append('{ "%s", %g, %g, { %s } }' % (name, offset, factor, array("%s_p%d" % (base, i), expected)))
    if parameters:
        print("static const golden_parameter %s_p[] = { %s };" % (base, ",\n    ".join(parameters)))
    rows.append('{ "%s", %d, { %s }, %d, %d, %d, %g, %g, %g, %g, %d, { %s }, { %s }, { %s }, %s, %d },' % (
        c["name"], c["n"], ", ".join(map(str, c["shape"] + (0,) * (4 - len(c["shape"])))), c["tokens"], c["more"], c["frozen"], c["tolerance"], c["dropout"], c["offset"], c["factor"], c["quarters"],
        y, y_inference, dx, base + "_p" if parameters else "NULL", len(parameters)))
print("static const golden_case golden_cases[] = {\n" + "\n".join(rows) + "\n};")

rows = []
for name, c, n, shape, ys, last in bn_steps:
    base = c_name("steps " + name)
    rows.append('{ "%s", %d, { %s }, { %s }, { %s } },' % (name, n, ", ".join(map(str, shape + (0,) * (4 - len(shape)))), array(base + "_y", ys), array(base + "_p", last)))
print("\n/* three outputs in training and one in inference; then weight, bias, running_mean, running_var */")
print("static const struct { const char *name; int n, shape[4]; golden_array y, last; } golden_steps[] = {\n" + "\n".join(rows) + "\n};")

print("\nenum { LOSS_N = %d, LOSS_T = %d, LOSS_C = %d };" % (LN, LT, LC))
print("static const float loss_shares[] = {\n%s\n};" % "\n".join(" ".join("%.9gf," % v for v in row) for row in loss_shares.reshape(-1, 8).tolist()))
print("/* name, loss, sum of weights (1 for a plain sum), gradient of the loss */")
print("static const struct { const char *name; double loss, weight, gradient[LOSS_N * LOSS_T * LOSS_C]; } golden_losses[] = {")
for name, value, weight, gradient in losses:
    print('{ "%s", %.12g, %.12g, {\n%s } },' % (name, value, weight, numbers(gradient.flatten().tolist())))
print("};")

print("\n/* the learning rates of so many steps, from 0.2 on */")
print("enum { GOLDEN_RATES = %d };\nstatic const struct { const char *name; double rate[GOLDEN_RATES]; } golden_schedules[] = {" % RATES)
for name, rates in schedules:
    print('{ "%s", {\n%s } },' % (name, numbers(rates)))
print("};")

print("\nenum { TRAINED_N = %d, TRAINED_STEPS = %d, TRAINED_PARAMETERS = %d, TRAINED_VALUES = %d };" % (TN, STEPS, len(trained_p), trainings[0][3].numel()))
print("static const golden_parameter trained_parameter[] = { %s };" % ",\n    ".join('{ "%s", %g, %g, { NULL, %d } }' % (k, o, f, math.prod(size)) for k, size, o, f in trained_p))
print("/* the loss of each step; then the outputs for the last batch in inference, and all parameters */")
print("static const struct { const char *name; double loss[TRAINED_STEPS], y[TRAINED_N * 3], last[TRAINED_VALUES]; } golden_training[] = {")
for name, values, y, last in trainings:
    print('{ "%s", {\n%s }, {\n%s }, {\n%s } },' % (name, numbers(values), numbers(y.flatten().tolist()), numbers(last.tolist())))
print("};")
