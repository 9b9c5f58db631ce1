"""The nets of exchange.c in PyTorch, with the same names."""
import torch
from torch import nn
import torch.nn.functional as F


class MLP(nn.Module):
    input, tokens = (20,), 0

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(20, 33), nn.Linear(33, 17), nn.Linear(17, 5, bias=False)

    def forward(self, x):
        return self.fc3(torch.tanh(self.fc2(F.relu(self.fc1(x)))))


class CNN(nn.Module):
    input, tokens = (3, 12, 10), 0

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1, groups=8, bias=False), nn.Conv2d(8, 6, (1, 2), groups=2)
        self.fc1, self.norm, self.fc2 = nn.Linear(6 * 3 * 2, 11), nn.BatchNorm1d(6 * 3 * 2), nn.Linear(11, 4)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = torch.flatten(F.gelu(self.conv3(self.conv2(x))), 1)
        return self.fc2(F.leaky_relu(self.fc1(self.norm(x)), 0.125))


class Block(nn.Module):
    def __init__(self, channels, filters, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm2d(filters)
        self.conv2, self.bn2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters)
        self.stride, self.extra = stride, filters - channels

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        x = x[:, :, ::self.stride, ::self.stride]
        return F.relu(y + F.pad(x, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2)))


class ResNet20(nn.Module):
    """He et al. 2015, section 4.2, with shortcuts of option A."""
    input, tokens = (3, 16, 12), 0

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(*(Block(max(width // 2, 16) if i == 0 else width, width, 2 if i == 0 and width > 16 else 1) for i in range(3))) for width in (16, 32, 64))
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.fc(x.mean((2, 3)))


class Tokens(nn.Module):
    input, tokens = (7,), 19

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(19, 12)
        self.ln1, self.up, self.down = nn.LayerNorm(12), nn.Linear(12, 24), nn.Linear(24, 12)
        self.ln2, self.head = nn.LayerNorm(12, bias=False), nn.Linear(7 * 12, 6)

    def forward(self, x):
        x = self.embedding(x)
        x = x + self.down(F.gelu(self.up(self.ln1(x)), approximate="tanh"))
        return self.head(self.ln2(x).flatten(1))


MODELS = {"mlp": MLP, "cnn": CNN, "resnet20": ResNet20, "tokens": Tokens}


def trained(name, seed):
    """A net whose values and running statistics are no longer those it began with."""
    torch.manual_seed(seed)
    net = MODELS[name]()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    net.train()
    for step in range(4):
        net(batch(net, 16, seed + step) if net.tokens else 1.5 * batch(net, 16, seed + step) + 0.25 * step)
    return net.eval()


def batch(net, n, seed):
    generator = torch.Generator().manual_seed(seed)
    if net.tokens:
        return torch.randint(net.tokens, (n,) + net.input, generator=generator)
    return torch.randn((n,) + net.input, generator=generator)
