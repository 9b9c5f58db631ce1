"""The models of bench/models.c in PyTorch: train_torch.py --model mnist_cnn --mode channels_last --threads 2"""
import os, time
begin = time.perf_counter()
import common
a = common.arguments(["eager", "channels_last", "compile", "compile_channels_last"])
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(a.threads)
import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(a.threads)
torch.manual_seed(1)


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.norm2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.stride, self.more = stride, cout - cin

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.more:
            x = F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
        return F.relu(x + y)


def resnet20():
    widths = [16] * 4 + [32] * 3 + [64] * 3
    blocks = [Block(c, f, 1 if c == f else 2) for c, f in zip(widths, widths[1:])]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), *blocks,
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


net = {"mnist_mlp": lambda: nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 512), nn.ReLU(),
                                          nn.Dropout(0.2), nn.Linear(512, 10)),
       "mnist_cnn": lambda: nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(),
                                          nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(), nn.Linear(128, 10)),
       "cifar_cnn": lambda: nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                                          nn.Linear(7200, 64), nn.ReLU(), nn.Linear(64, 10)),
       "resnet20": resnet20}[a.model]()
if a.model == "resnet20":
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
else:
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
x, y = (torch.from_numpy(v) for v in common.samples(a.model))
if x.dim() == 4:
    x = x.permute(0, 3, 1, 2)
    x = x.contiguous(memory_format=torch.channels_last if "channels_last" in a.mode else torch.contiguous_format)
if "channels_last" in a.mode:
    net = net.to(memory_format=torch.channels_last)
if "compile" in a.mode:
    net = torch.compile(net)
at = 0


def step():
    global at
    at = 0 if at + a.batch > common.POOL else at
    loss = F.cross_entropy(net(x[at:at + a.batch]), y[at:at + a.batch])
    at += a.batch
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


common.measure(a, "PyTorch", torch.__version__, begin, step)
