"""Writes losses.h: losses and their gradients as PyTorch computes them, in double precision.

    python3 losses.py > losses.h

Every row is the mean over the samples' (or labels') weights, as dtrain.h defines it, and a sample's regression
loss the mean over its outputs. A row with _sum is the plain sum over all labels, or all outputs.
"""
import torch
import torch.nn.functional as F

torch.manual_seed(3)
N, C, T = 6, 5, 4


def single(t):
    """Rounded to float32, as the C side reads it, but kept in double."""
    return t.float().double()


logits = single(torch.randn(N, C, dtype=torch.float64) * 1.5)
targets = single(logits + torch.randn(N, C, dtype=torch.float64) * 0.8)
labels = torch.tensor([3, 0, 2, 4, 2, 1])
binary = (torch.rand(N, C) > 0.5).double()
soft = single(torch.softmax(torch.randn(N, C, dtype=torch.float64), 1))
class_weights = single(torch.tensor([0.5, 2.0, 1.25, 0.0, 3.0], dtype=torch.float64))
sample_weights = single(torch.tensor([1.0, 0.25, 2.0, 0.0, 1.5, 0.75], dtype=torch.float64))
token_logits = single(torch.randn(3, T, C, dtype=torch.float64) * 1.5)
token_targets = single(torch.randn(3, T, C, dtype=torch.float64))
token_labels = torch.tensor([[1, 4, 0, 2], [3, 3, 1, 2], [2, 0, 4, 4]])
token_weights = single(torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64))

rows = []


def row(name, x, function):
    """function(x) returns the loss of each sample or label, already weighted, and the sum of the weights."""
    x = x.clone().requires_grad_(True)
    values, weight = function(x)
    loss = values.sum() / weight
    loss.backward()
    rows.append((name, float(loss.detach()), float(weight), x.grad.flatten().tolist()))
    return float(loss.detach())


def cross_entropy(x, y, w=None, sample=None, **options):
    """Loss per label, and the sum of weights: labels not ignored, times their class weights."""
    flat, target = x.reshape(-1, C), y.reshape(-1)
    values = F.cross_entropy(flat, target, weight=w, reduction="none", **options)
    weights = torch.ones_like(values) if w is None else w[target]
    weights = weights * (target != options.get("ignore_index", -100))
    if sample is not None:
        each = sample.repeat_interleave(target.numel() // sample.numel())
        values, weights = values * each, weights * each
    return values, weights.sum()


def regression(loss, sample=None, total=False, **options):
    def run(x):
        y = (token_targets if x.dim() == 3 else binary if loss is F.binary_cross_entropy_with_logits else targets)
        values = loss(x, y, reduction="none", **options).flatten(1)
        values = values.sum(1) if total else values.mean(1)
        weights = torch.ones_like(values) if sample is None else sample
        return values * weights, weights.sum()
    return run


def plain_sum(function):
    return lambda x: (function(x)[0], torch.tensor(1.0))


def ce(**options):
    return lambda x: cross_entropy(x, token_labels if x.dim() == 3 else labels, **options)


row("ce", logits, ce())
row("ce_smooth", logits, ce(label_smoothing=0.1))
row("ce_ignore_2", logits, ce(ignore_index=2))
row("ce_ignore_0", logits, ce(ignore_index=0))
row("ce_class_weights", logits, ce(w=class_weights))
row("ce_smooth_ignore_class_weights", logits, ce(w=class_weights, label_smoothing=0.2, ignore_index=2))
row("ce_sample_weights", logits, ce(sample=sample_weights))
row("ce_everything", logits, ce(w=class_weights, sample=sample_weights, label_smoothing=0.2, ignore_index=1))
row("ce_sum", logits, plain_sum(ce()))
row("ce_sum_class_weights", logits, plain_sum(ce(w=class_weights)))
row("ce_sum_sample_weights", logits, plain_sum(ce(sample=sample_weights)))
for name, options in ("ce_soft", {}), ("ce_soft_smooth", {"label_smoothing": 0.1}), ("ce_soft_class_weights", {"weight": class_weights}):
    got = row(name, logits, lambda x: (F.cross_entropy(x, soft, reduction="none", **options), torch.tensor(float(N))))
    assert abs(got - float(F.cross_entropy(logits, soft, **options))) < 1e-12
row("ce_soft_sample_weights", logits,
    lambda x: (F.cross_entropy(x, soft, reduction="none") * sample_weights, sample_weights.sum()))
row("bce", logits, regression(F.binary_cross_entropy_with_logits))
row("bce_sum", logits, plain_sum(regression(F.binary_cross_entropy_with_logits, total=True)))
row("bce_sample_weights", logits, regression(F.binary_cross_entropy_with_logits, sample_weights))
row("mse", logits, regression(F.mse_loss))
row("mse_sum", logits, plain_sum(regression(F.mse_loss, total=True)))
row("mse_sample_weights", logits, regression(F.mse_loss, sample_weights))
row("mae", logits, regression(F.l1_loss))
row("mae_sample_weights", logits, regression(F.l1_loss, sample_weights))
row("huber", logits, regression(F.huber_loss))
row("huber_03", logits, regression(F.huber_loss, delta=0.3))
row("huber_sum", logits, plain_sum(regression(F.huber_loss, total=True, delta=0.3)))
row("tokens", token_logits, ce())
row("tokens_smooth", token_logits, ce(label_smoothing=0.1))
row("tokens_ignore_4", token_logits, ce(ignore_index=4))
row("tokens_class_weights", token_logits, ce(w=class_weights))
row("tokens_sample_weights", token_logits, ce(sample=token_weights, ignore_index=4))
row("tokens_sum", token_logits, plain_sum(ce()))
row("tokens_mse", token_logits, regression(F.mse_loss))
row("tokens_mse_sum", token_logits, plain_sum(regression(F.mse_loss, total=True)))

# Where PyTorch has the same mean, it must be the same number.
value = {r[0]: r[1] for r in rows}
for name, expected in (
    ("ce", F.cross_entropy(logits, labels)),
    ("ce_smooth", F.cross_entropy(logits, labels, label_smoothing=0.1)),
    ("ce_ignore_2", F.cross_entropy(logits, labels, ignore_index=2)),
    ("ce_class_weights", F.cross_entropy(logits, labels, weight=class_weights)),
    ("ce_smooth_ignore_class_weights", F.cross_entropy(logits, labels, weight=class_weights, label_smoothing=0.2, ignore_index=2)),
    ("ce_sum", F.cross_entropy(logits, labels, reduction="sum")),
    ("bce", F.binary_cross_entropy_with_logits(logits, binary)),
    ("mse", F.mse_loss(logits, targets)),
    ("mse_sum", F.mse_loss(logits, targets, reduction="sum")),
    ("bce_sum", F.binary_cross_entropy_with_logits(logits, binary, reduction="sum")),
    ("mae", F.l1_loss(logits, targets)),
    ("huber_03", F.huber_loss(logits, targets, delta=0.3)),
    ("tokens", F.cross_entropy(token_logits.flatten(0, 1), token_labels.flatten())),
):
    assert abs(value[name] - float(expected)) < 1e-12, name


def numbers(values, form="%.9g"):
    text, line = [], "   "
    for v in values:
        piece = " " + form % v + ","
        if len(line) + len(piece) > 118:
            text.append(line)
            line = "   "
        line += piece
    return "\n".join(text + [line])


def floats(name, t):
    print("static const float %s[] = {\n%s\n};" % (name, numbers(t.flatten().tolist())))


def integers(name, t):
    print("static const int %s[] = {\n%s\n};" % (name, numbers(t.flatten().tolist(), "%d")))


print("/* Made by losses.py with PyTorch %s: do not edit. */" % torch.__version__)
print("enum { GOLDEN_N = %d, GOLDEN_C = %d, GOLDEN_TOKEN_N = 3, GOLDEN_T = %d };" % (N, C, T))
for name in "logits", "targets", "binary", "soft", "class_weights", "sample_weights", "token_logits", "token_targets", "token_weights":
    floats("golden_" + name, globals()[name])
integers("golden_labels", labels)
integers("golden_token_labels", token_labels)
print("/* name, loss, sum of weights (1 for a plain sum), gradient of the loss */")
print("static const struct { const char *name; double loss, weight, gradient[%d]; } golden_loss[] = {" % token_logits.numel())
for name, loss, weight, gradient in rows:
    print('{ "%s", %.12g, %.12g, {\n%s } },' % (name, loss, weight, numbers(gradient)))
print("};")
