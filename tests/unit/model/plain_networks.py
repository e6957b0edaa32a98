"""Formulas of networks of interacting features, step by step as in their papers."""

from itertools import combinations

import torch

from tests.unit.model.plain_training import Plain, Tensor, relu, sigmoid, softmax


def fields_of(plain: Plain, dense: Tensor, rows: Tensor, name: str = "fields.fields.dense") -> list[Tensor]:
    """Return the vector of every feature; a dense feature's is a learned one times its value."""
    vectors = plain.weights[name]
    return [*plain.embedded(rows).unbind(1), *(x.unsqueeze(1) * v for x, v in zip(dense.T, vectors, strict=True))]


def side_by_side(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """Return dense features and rows in one vector."""
    return torch.cat([dense, *plain.embedded(rows).unbind(1)], dim=1)


def ffnn(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """A perceptron."""
    return plain.perceptron("network", side_by_side(plain, dense, rows), hidden=2)


def wide_deep(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1606.07792, section 3.3."""
    rows = plain.embedded(rows)
    deep = torch.cat([dense, *(row[:, 1:] for row in rows.unbind(1))], dim=1)
    wide = sum(row[:, :1] for row in rows.unbind(1)) + plain.linear("linear", dense)
    return wide + plain.perceptron("network", deep, hidden=2)


def deepfm(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1703.04247, equations 1 to 4."""
    fields = fields_of(plain, dense, rows)
    vectors = [field[:, 1:] for field in fields]
    pairs = sum((one * other).sum(1, keepdim=True) for one, other in combinations(vectors, 2))
    return sum(field[:, :1] for field in fields) + pairs + plain.perceptron("network", torch.cat(vectors, 1), hidden=2)


def dlrm(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1906.00091, section 2.1."""
    rows = plain.embedded(rows)
    bottom = plain.perceptron("bottom", dense, hidden=1)
    last = plain.places(1, plain.style.norm != "none")
    bottom = plain.activated(f"bottom.{last + 1}", bottom)
    vectors = [bottom, *rows.unbind(1)]
    products = [(vectors[i] * vectors[j]).sum(1) for i in range(len(vectors)) for j in range(i)]
    return plain.perceptron("top", torch.cat([bottom, torch.stack(products, dim=1)], dim=1), hidden=2)


def dcn_v2(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 2008.13535, section 3, a perceptron parallel to the cross layers."""
    first = x = side_by_side(plain, dense, rows)
    for number in range(2):
        x = first * plain.linear(f"cross.{number}.up", x) + x
    deep = plain.perceptron("deep", first, hidden=2, output=False)
    return plain.linear("last", torch.cat([x, deep], dim=1))


def gdcn(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 2311.04635, equation 2, a perceptron parallel to the cross layers."""
    first = x = side_by_side(plain, dense, rows)
    for number in range(2):
        gate = sigmoid(plain.linear(f"cross.{number}.gate", x))
        x = first * plain.linear(f"cross.{number}.cross", x) * gate + x
    deep = plain.perceptron("deep", first, hidden=2, output=False)
    return plain.linear("last", torch.cat([x, deep], dim=1))


def xdeepfm(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1803.05170, equations 6 to 9, one layer of three maps."""
    fields = fields_of(plain, dense, rows)
    vectors = [field[:, 1:] for field in fields]
    products = [one * other for one in vectors for other in vectors]
    mixed = plain.weights["interactions.layers.0.weight"]
    sums = [sum(w * each for w, each in zip(own, products, strict=True)).sum(1) for own in mixed]
    crossed = plain.linear("weights", torch.stack(sums, dim=1))
    return (
        sum(field[:, :1] for field in fields) + crossed + plain.perceptron("network", torch.cat(vectors, 1), hidden=2)
    )


def afm(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1708.04617, equation 7; dropout is of the weighed sum."""
    fields = fields_of(plain, dense, rows)
    products = [one[:, 1:] * other[:, 1:] for one, other in combinations(fields, 2)]
    hidden = [relu(plain.linear("attention.0", product)) for product in products]
    shares = softmax([plain.linear("attention.2", own) for own in hidden])
    weighed = sum(share * product for share, product in zip(shares, products, strict=True))
    return sum(field[:, :1] for field in fields) + plain.linear("last", plain.dropped(weighed, plain.style.dropout))


def autoint(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1810.11921, equations 5 to 8, two heads of three columns, and a parallel perceptron (section 5.3)."""
    start = x = fields_of(plain, dense, rows, "fields.dense")
    for layer in range(2):
        query, key, value, residual = plain.weights[f"attention.{layer}.project.weight"].split(6)
        found = []
        for one in x:
            heads = []
            for own in (slice(0, 3), slice(3, 6)):
                asked = one @ query[own].T
                shares = softmax([(asked * (other @ key[own].T)).sum(1, keepdim=True) for other in x])
                heads.append(sum(share * (other @ value[own].T) for share, other in zip(shares, x, strict=True)))
            found.append(relu(torch.cat(heads, dim=1) + one @ residual.T))
        x = found
    deep = plain.perceptron("network", torch.cat(start, dim=1), hidden=2)
    return plain.linear("last", torch.cat(x, dim=1)) + deep


def fibinet(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 1905.09433, equations 3 to 9, a matrix for each feature."""
    fields = fields_of(plain, dense, rows)
    vectors = [field[:, 1:] for field in fields]
    squeezed = torch.stack([vector.mean(1) for vector in vectors], dim=1)
    shares = relu(plain.linear("importance.excite.2", relu(plain.linear("importance.excite.0", squeezed))))
    weighed = [share.unsqueeze(1) * vector for share, vector in zip(shares.T, vectors, strict=True)]
    products = []
    for name, own in (("plain", vectors), ("weighed", weighed)):
        products += [plain.linear(f"{name}.inner.{i}", own[i]) * own[j] for i, j in combinations(range(len(own)), 2)]
    return sum(field[:, :1] for field in fields) + plain.perceptron("network", torch.cat(products, dim=1), hidden=2)


def finalmlp(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 2304.00902, equations 4 to 9: the first gate reads the first feature, the second a learned vector."""
    vectors = plain.embedded(rows)
    x = torch.cat([dense, *vectors.unbind(1)], dim=1)
    streams = []
    for number, read in enumerate((vectors[:, 0], plain.weights["gates.1.learned"])):
        hidden = relu(plain.linear(f"gates.{number}.network.0", read))
        seen = 2 * sigmoid(plain.linear(f"gates.{number}.network.2", hidden)) * x
        streams.append(plain.perceptron(("first", "second")[number], seen, hidden=2, output=False))
    one, other = streams
    logits = plain.linear("fusion.first", one) + plain.linear("fusion.second", other)
    for head, matrix in enumerate(plain.weights["fusion.inner"]):
        own = slice(3 * head, 3 * head + 3)
        logits = logits + ((one[:, own] @ matrix) * other[:, own]).sum(1, keepdim=True)
    return logits


def mask_block(plain: Plain, number: int, embeddings: Tensor, x: Tensor) -> Tensor:
    """arXiv 2102.07619, equations 6 and 9."""
    mask = plain.linear(f"blocks.{number}.mask.2", relu(plain.linear(f"blocks.{number}.mask.0", embeddings)))
    return plain.perceptron(f"blocks.{number}.layer", mask * x, hidden=1, output=False)


def normalised_fields(plain: Plain, fields: list[Tensor]) -> Tensor:
    """arXiv 2102.07619, equation 8: each vector by itself."""
    return plain.over_columns("norm", torch.stack(fields, dim=1)).flatten(1)


def masknet(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 2102.07619, section 3.5, serial."""
    fields = fields_of(plain, dense, rows, "fields.dense")
    x = normalised_fields(plain, fields)
    for number in range(2):
        x = mask_block(plain, number, torch.cat(fields, dim=1), x)
    return plain.perceptron("network", x, hidden=0)


def masknet_parallel(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """arXiv 2102.07619, section 3.5, parallel; the perceptron has no normalisation."""
    fields = fields_of(plain, dense, rows, "fields.dense")
    x, embeddings = normalised_fields(plain, fields), torch.cat(fields, dim=1)
    blocks = [mask_block(plain, number, embeddings, x) for number in range(2)]
    return plain.perceptron("network", torch.cat(blocks, dim=1), hidden=2, norms=False)


def final_block(plain: Plain, prefix: str, x: Tensor, layers: int) -> Tensor:
    """doi 10.1145/3539618.3591988, equation 3, and an output: half of a layer is linear, half a product of both."""
    size = 2 + (plain.style.norm != "none") + (plain.style.dropout > 0)
    for layer in range(layers):
        at = layer * size
        one, other = plain.linear(f"{prefix}.{at}.linear", x).chunk(2, dim=1)
        x = torch.cat([one, one * other], dim=1)
        if plain.style.norm != "none":
            at += 1
            x = plain.normalised(f"{prefix}.{at}", x)
        x = plain.dropped(plain.activated(f"{prefix}.{at + 1}", x), plain.style.dropout)
    return plain.linear(f"{prefix}.{layers * size}", x)


def finalnet(plain: Plain, dense: Tensor, rows: Tensor) -> Tensor:
    """doi 10.1145/3539618.3591988, sections 2.1 to 2.3: two blocks, a gate before the first, each learns from both."""
    fields = fields_of(plain, dense, rows, "fields.dense")
    weights, biases = plain.weights["gate.linear.weight"], plain.weights["gate.linear.bias"]
    gated = []
    for own, bias, vector in zip(weights, biases, fields, strict=True):
        gated.append(vector * (sum(w * other for w, other in zip(own, fields, strict=True)) + bias))
    first = final_block(plain, "first", torch.cat([*fields, *gated], dim=1), layers=2)
    second = final_block(plain, "second", torch.cat(fields, dim=1), layers=2)
    both = (first + second) / 2
    taught = sigmoid(both.detach())
    losses = [relu(z) + torch.log1p(torch.exp(-z.abs())) - taught * z for z in (first, second)]
    plain.auxiliary = 0.5 * sum(losses)
    return both
