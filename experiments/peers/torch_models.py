"""The models of sparring-worker's --model in PyTorch: the same operations, parameter names and initialisation.

    made = make_model("resnet18:3x32x32,10")
    loss = torch.nn.functional.cross_entropy(made.model(x).flatten(0, -2), y.flatten())

Definitions follow torchvision (resnet, vgg), nanoGPT (gpt) and LeCun et al. 1998 (lenet); neither package is needed.
Works with PyTorch 1.13 and newer.  As in our programs vgg and gpt have no dropout.
"""
import collections
import math
import re

import torch
import torch.nn as nn
import torch.nn.functional as F

# A model and its data: input_shape of one sample (gpt: (T,), int64 token ids below vocabulary), classes of each
# of its `positions` logits per sample (1: logits are (batch, classes), else (batch, positions, classes)).
Made = collections.namedtuple("Made", "model input_shape classes positions vocabulary")

LENET = "cnn:1x28x28-conv6k5p2-pool-conv16k5p0-pool-fc120-fc84-fc10"


def make_model(spec):
    """The Made of a spec, initialised from torch's generator as it stands; ValueError says what is wrong."""
    kind, _, rest = spec.partition(":")
    if kind == "lenet" and not rest:
        kind, _, rest = LENET.partition(":")
    for names, make in BUILDERS.items():
        if kind in names:
            return make(kind, rest)
    raise ValueError(f"unknown model '{kind}' in '{spec}'")


def flops_per_sample(made):
    """Of a forward and backward pass: 2 m n k for each matrix product of forward (convolutions and attention's two
    full T x T products are some, too), three times that with backward; the rest is not counted."""
    count = 0

    def linear(module, inputs, output):
        nonlocal count
        count += 2 * output.numel() * module.in_features

    def convolution(module, inputs, output):
        nonlocal count
        count += 2 * output.numel() * module.weight[0].numel()

    def attention(module, inputs, output):
        nonlocal count
        count += 4 * output.numel() * output.shape[1]  # q k^T and p v, over all heads

    def head(module, inputs, output):
        nonlocal count
        count += 2 * output.numel() * module.transformer.wte.embedding_dim

    kinds = {nn.Linear: linear, nn.Conv2d: convolution, SelfAttention: attention, Gpt: head}
    hooks = [m.register_forward_hook(kinds[type(m)]) for m in made.model.modules() if type(m) in kinds]
    training, parameter = made.model.training, next(made.model.parameters())
    made.model.eval()  # batch norm does with one sample
    with torch.no_grad():
        made.model(random_input(made, 1).to(parameter.device))
    made.model.train(training)
    for hook in hooks:
        hook.remove()
    return 3 * count


def random_input(made, batch):
    if made.vocabulary:
        return torch.randint(0, made.vocabulary, (batch,) + made.input_shape)
    return torch.randn((batch,) + made.input_shape)


def random_labels(made, batch):
    return torch.randint(0, made.classes, (batch, made.positions) if made.positions > 1 else (batch,))


def loss_of(logits, labels):
    """Mean over samples and positions."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


# ---- linear, mlp, mlp-bn ----


def make_mlp(kind, text):
    sizes = [int(size) for size in text.split("-")]
    layers, plain = collections.OrderedDict(), []
    for i in range(1, len(sizes)):
        layers[f"fc{i}"] = nn.Linear(sizes[i - 1], sizes[i])
        plain.append(layers[f"fc{i}"])
        if i + 1 < len(sizes) and kind != "linear":
            layers[f"relu{i}"] = nn.ReLU()
            plain += ([nn.BatchNorm1d(sizes[i])] if kind == "mlp-bn" else []) + [nn.ReLU()]
    model = nn.Sequential(*plain) if kind == "mlp-bn" else nn.Sequential(layers)
    return Made(model, (sizes[0],), sizes[-1], 1, 0)


# ---- cnn, lenet ----


def numbers(pattern, word):
    found = re.fullmatch(pattern, word)
    return found and [int(n) if n else None for n in found.groups()]


def make_cnn(kind, text):
    """CxHxW-LAYER-...: convK[kS][sN][pN], bn (behind conv or fc), pool[kS], fcN; ReLU behind each conv and fc but
    the last fc, or behind the bn that follows it."""
    shape, *words = text.split("-")
    channels, height, width = (int(n) for n in shape.split("x"))
    layers, counts, flat = collections.OrderedDict(), collections.Counter(), False

    def add(name, layer):
        counts[name] += 1
        layers[f"{name}{counts[name]}"] = layer

    for i, word in enumerate(words):
        if (given := numbers(r"conv(\d+)(?:k(\d+))?(?:s(\d+))?(?:p(\d+))?", word)) and not flat:
            kernel, stride = given[1] or 3, given[2] or 1
            padding = kernel // 2 if given[3] is None else given[3]
            add("conv", nn.Conv2d(channels, given[0], kernel, stride, padding))
            channels = given[0]
            height, width = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
        elif (given := numbers(r"pool(?:k(\d+))?", word)) and not flat:
            kernel = given[0] or 2
            add("pool", nn.MaxPool2d(kernel))
            height, width = height // kernel, width // kernel
        elif given := numbers(r"fc(\d+)", word):
            if not flat:
                layers["flatten"] = nn.Flatten()
                channels, height, width, flat = channels * height * width, 1, 1, True
            add("fc", nn.Linear(channels, given[0]))
            channels = given[0]
        elif word == "bn" and i > 0 and words[i - 1][:2] in ("co", "fc"):
            add("bn", nn.BatchNorm1d(channels) if flat else nn.BatchNorm2d(channels))
        else:
            raise ValueError(f"layer '{word}' in '{text}'")
        if word[:2] in ("co", "fc", "bn") and i + 1 < len(words) and words[i + 1] != "bn":
            add("relu", nn.ReLU())
    shape = tuple(int(n) for n in shape.split("x"))
    return Made(nn.Sequential(layers), shape, channels, 1, 0)


# ---- resnet (torchvision) ----


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs, planes, stride, downsample):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)), inplace=True)


class Bottleneck(nn.Module):
    """v1.5: the stride is on the 3x3."""
    expansion = 4

    def __init__(self, inputs, planes, stride, downsample):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.downsample = downsample

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)), inplace=True)


class ResNet(nn.Module):
    def __init__(self, block, depths, channels, small, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, *((3, 1, 1) if small else (7, 2, 3)), bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        self.inputs = 64
        self.layer1 = self.make_layer(block, 64, depths[0], 1)
        self.layer2 = self.make_layer(block, 128, depths[1], 2)
        self.layer3 = self.make_layer(block, 256, depths[2], 2)
        self.layer4 = self.make_layer(block, 512, depths[3], 2)
        self.fc = nn.Linear(512 * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def make_layer(self, block, planes, depth, stride):
        outputs, blocks = planes * block.expansion, []
        for i in range(depth):
            downsample = None
            if i == 0 and (stride != 1 or self.inputs != outputs):
                downsample = nn.Sequential(nn.Conv2d(self.inputs, outputs, 1, stride, bias=False),
                                           nn.BatchNorm2d(outputs))
            blocks.append(block(self.inputs, planes, stride if i == 0 else 1, downsample))
            self.inputs = outputs
        return nn.Sequential(*blocks)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def image_words(text):
    """[CxHxW,CLASSES]; 3x32x32,10 when empty."""
    shape, classes = (text or "3x32x32,10").split(",")
    return tuple(int(n) for n in shape.split("x")), int(classes)


def make_resnet(kind, text):
    shape, classes = image_words(text)
    block, depths = {"resnet18": (BasicBlock, (2, 2, 2, 2)), "resnet50": (Bottleneck, (3, 4, 6, 3))}[kind]
    return Made(ResNet(block, depths, shape[0], shape[1] < 64, classes), shape, classes, 1, 0)


# ---- vgg (torchvision; without dropout) ----

VGG = {"vgg11": "64 M 128 M 256 256 M 512 512 M 512 512 M",
       "vgg16": "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M"}


class Vgg(nn.Module):
    def __init__(self, plan, channels, features, hidden, classes):
        super().__init__()
        layers = []
        for word in plan.split():
            if word == "M":
                layers.append(nn.MaxPool2d(2, 2))
            else:
                layers += [nn.Conv2d(channels, int(word), 3, padding=1), nn.ReLU(inplace=True)]
                channels = int(word)
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(inplace=True), nn.Identity(),
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Identity(),
            nn.Linear(hidden, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.zeros_(module.bias)

    def forward(self, x):
        x = self.features(x)
        if x.shape[-1] > 7:
            x = F.adaptive_avg_pool2d(x, 7)
        return self.classifier(x.flatten(1))


def make_vgg(kind, text):
    shape, classes = image_words(text)
    small = shape[1] < 64
    return Made(Vgg(VGG[kind], shape[0], 512 if small else 512 * 7 * 7, 512 if small else 4096, classes),
                shape, classes, 1, 0)


# ---- gpt (nanoGPT; without dropout, lm_head is wte) ----


class SelfAttention(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x):
        batch, positions, width = x.shape
        q, k, v = (t.view(batch, positions, self.heads, width // self.heads).transpose(1, 2)
                   for t in self.c_attn(x).split(width, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(k.shape[-1]))
            later = torch.ones(positions, positions, dtype=torch.bool, device=x.device).triu(1)
            y = F.softmax(scores.masked_fill(later, -math.inf), dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(batch, positions, width))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = SelfAttention(heads, width)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, positions, vocabulary):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, width),
            "wpe": nn.Embedding(positions, width),
            "h": nn.ModuleList(Block(heads, width) for _ in range(layers)),
            "ln_f": nn.LayerNorm(width)})
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, 0, 0.02 / math.sqrt(2 * layers))
            elif parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        t = self.transformer
        x = t.wte(tokens) + t.wpe.weight[:tokens.shape[1]]
        for block in t.h:
            x = block(x)
        return F.linear(t.ln_f(x), t.wte.weight)


def make_gpt(kind, text):
    layers, heads, width, positions, *rest = (int(n) for n in text.split(","))
    vocabulary = rest[0] if rest else 256
    return Made(Gpt(layers, heads, width, positions, vocabulary), (positions,), vocabulary, positions, vocabulary)


BUILDERS = {("linear", "mlp", "mlp-bn"): make_mlp, ("cnn",): make_cnn, ("resnet18", "resnet50"): make_resnet,
            ("vgg11", "vgg16"): make_vgg, ("gpt",): make_gpt}
