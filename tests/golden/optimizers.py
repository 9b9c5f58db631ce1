"""Writes optimizers.h: ten steps of every optimizer on a linear model, by PyTorch in double precision.

    python3 optimizers.py > optimizers.h
"""
import torch

torch.manual_seed(5)
N, IN, OUT, STEPS = 4, 3, 2, 10


def single(t):
    return t.float().double()


x = single(torch.randn(N, IN, dtype=torch.float64) * torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64))
y = single(torch.randn(N, OUT, dtype=torch.float64) * 2)
weight = single(torch.randn(OUT, IN, dtype=torch.float64))
bias = single(torch.randn(OUT, dtype=torch.float64))

O = torch.optim
cases = [  # name, optimizer, its options, clip_norm, names without decay, frozen names
    ("sgd", O.SGD, dict(lr=0.05), 0, "", ""),
    ("sgd_decay", O.SGD, dict(lr=0.05, weight_decay=0.1), 0, "", ""),
    ("sgd_momentum", O.SGD, dict(lr=0.05, momentum=0.8), 0, "", ""),
    ("momentum", O.SGD, dict(lr=0.02, momentum=0.9), 0, "", ""),
    ("momentum_05", O.SGD, dict(lr=0.02, momentum=0.5), 0, "", ""),
    ("momentum_decay", O.SGD, dict(lr=0.02, momentum=0.9, weight_decay=0.1), 0, "", ""),
    ("nesterov", O.SGD, dict(lr=0.02, momentum=0.9, nesterov=True), 0, "", ""),
    ("nesterov_decay", O.SGD, dict(lr=0.02, momentum=0.7, nesterov=True, weight_decay=0.1), 0, "", ""),
    ("adam", O.Adam, dict(lr=0.05), 0, "", ""),
    ("adam_default_rate", O.Adam, dict(), 0, "", ""),
    ("adam_betas", O.Adam, dict(lr=0.05, betas=(0.7, 0.95)), 0, "", ""),
    ("adam_epsilon", O.Adam, dict(lr=0.05, eps=0.5), 0, "", ""),
    ("adam_decay", O.Adam, dict(lr=0.05, weight_decay=0.2), 0, "", ""),
    ("adamw", O.AdamW, dict(lr=0.05, weight_decay=0.01), 0, "", ""),
    ("adamw_decay", O.AdamW, dict(lr=0.05, weight_decay=0.5), 0, "", ""),
    ("adamw_none", O.AdamW, dict(lr=0.05, weight_decay=0), 0, "", ""),
    ("rmsprop", O.RMSprop, dict(lr=0.05), 0, "", ""),
    ("rmsprop_alpha", O.RMSprop, dict(lr=0.05, alpha=0.8, eps=0.1), 0, "", ""),
    ("rmsprop_momentum", O.RMSprop, dict(lr=0.02, momentum=0.6), 0, "", ""),
    ("rmsprop_decay", O.RMSprop, dict(lr=0.02, weight_decay=0.2), 0, "", ""),
    ("clip", O.SGD, dict(lr=0.05), 0.5, "", ""),
    ("clip_above", O.SGD, dict(lr=0.05), 1e6, "", ""),
    ("clip_adam", O.Adam, dict(lr=0.05), 0.5, "", ""),
    ("clip_decay", O.SGD, dict(lr=0.05, momentum=0.9, weight_decay=0.1), 0.5, "", ""),
    ("no_decay_bias", O.SGD, dict(lr=0.05, weight_decay=0.3), 0, "bias", ""),
    ("no_decay_bias_adamw", O.AdamW, dict(lr=0.05, weight_decay=0.5), 0, "bias", ""),
    ("freeze_weight", O.SGD, dict(lr=0.05, momentum=0.9), 0, "", "weight"),
    ("freeze_weight_clip", O.SGD, dict(lr=0.05), 0.5, "", "weight"),
    ("freeze_weight_adamw", O.AdamW, dict(lr=0.05, weight_decay=0.1), 0, "", "weight"),
]


def run(optimizer, options, clip, no_decay, frozen):
    parameters = {"weight": weight.clone(), "bias": bias.clone()}
    for name, p in parameters.items():
        p.requires_grad_(name != frozen)
    groups = []
    for name, p in parameters.items():
        if name != frozen:
            groups.append({"params": [p], "weight_decay": 0 if name == no_decay else options.get("weight_decay", 0)})
    o = optimizer(groups, **options)
    first = None
    for step in range(STEPS):
        o.zero_grad()
        loss = ((x @ parameters["weight"].T + parameters["bias"] - y) ** 2).mean()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_([p for p in parameters.values() if p.requires_grad], clip)
        o.step()
        flat = torch.cat([p.detach().flatten() for p in parameters.values()]).tolist()
        first = first or flat
    return float(loss.detach()), first, flat


def numbers(values):
    return ", ".join("%.9g" % v for v in values)


def floats(name, t):
    print("static const float %s[] = { %s };" % (name, numbers(t.flatten().tolist())))


print("/* Made by optimizers.py with PyTorch %s: do not edit. */" % torch.__version__)
print("enum { GOLDEN_N = %d, GOLDEN_IN = %d, GOLDEN_OUT = %d, GOLDEN_STEPS = %d };" % (N, IN, OUT, STEPS))
floats("golden_x", x)
floats("golden_y", y)
floats("golden_weight", weight)
floats("golden_bias", bias)
print("/* name, loss before the last step, weight and bias after the first step, and after the last */")
print("static const struct { const char *name; double loss, first[%d], last[%d]; } golden_optimizer[] = {" % (OUT * IN + OUT, OUT * IN + OUT))
for name, *rest in cases:
    loss, first, last = run(*rest)
    print('{ "%s", %.9g,\n    { %s },\n    { %s } },' % (name, loss, numbers(first), numbers(last)))
print("};")
