"""Verifies the conformance vectors and the recorded run, with the standard library and NumPy alone.

`python verify.py [FOLDER]` reads FOLDER/*.json and FOLDER/run (by default its own folder). It says
for each file and each version what agrees and what is not checked, has a line for each
disagreement, and exits with 1 then.

It was written from docs/protocol.md and these files, without any other code of the project. By the
headings of docs/protocol.md it checks "Signatures and digests" (seeds, receipts, run), "Messages in
another language" (messages), "Payloads" (polynomials, ciphertexts, codecs, noise, run), "A step"
(optimizers, run), "Journals, logs and epsilon" (ledgers, run), and "A committee of key holders"
(shares, envelopes, run).
"""

import hashlib
import itertools
import json
import lzma
import math
import struct
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np

FIELD = 2**31 - 1  # of the key holders' shares
RINGS = {  # N, and the primes: two for each word modulus Q
    "n2048-q53": (2048, (94887937, 94904321)),
    "n4096-q106": (4096, (94887937, 94904321, 94789633, 94863361)),
    "n8192-q212": (
        8192,
        (94781441, 94863361, 93290497, 93356033, 93110273, 93192193, 92897281, 92946433),
    ),
    "n4096-q53": (4096, (94887937, 94904321)),
    "n8192-q106": (8192, (94781441, 94863361, 93290497, 93356033)),
}
unhex, uint64, f = bytes.fromhex, struct.Struct("<Q").pack, np.float32


class Checks:
    """Counts what agrees, and keeps a line for each disagreement; `at` is where checks are."""

    def __init__(self, file):
        self.file, self.at, self.agreed, self.wrong = file, "", Counter(), []

    def that(self, what, holds):
        self.agreed[what] += bool(holds)
        if not holds:
            line = f"DISAGREES {self.file}: {what}{self.at and f' at {self.at}'}"
            # one line, whatever a file holds
            self.wrong.append(line.encode("unicode_escape").decode())

    def array(self, what, mine, entry):
        exact, mine = mine, np.asarray(mine).astype(entry["type"])
        first = [
            float.fromhex(x) if mine.dtype.kind == "f" else int(x) for x in entry["first"].split()
        ]
        alike = np.array_equal(exact, mine) and (len(mine), mine[:16].tolist()) == (
            entry["count"],
            first,
        )
        self.that(what, alike and blake2b(mine.tobytes()).hex() == entry["blake2b"])

    def guarded(self, check, *arguments):
        """Malformed input is a disagreement."""
        try:
            return check(self, *arguments)
        except Exception as problem:  # whatever a file holds, the others are still verified
            self.that(
                f"malformed, says {check.__name__}: {type(problem).__name__}: {str(problem)[:200]}",
                False,
            )


# Signatures and digests


def blake2b(data):
    return hashlib.blake2b(data, digest_size=32).digest()


def digest(domain, *parts):
    return blake2b(b"".join(uint64(len(part)) + part for part in (domain.encode(), *parts)))


def canonical(name, record, without=(), **changes):
    fields = {key: value for key, value in {**record, **changes}.items() if key not in without}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{name}:{text}".encode()


def mixed(rows, diagonal, turns, words=(0, 0)):
    """The quarter rounds of ChaCha20 or BLAKE3 on all columns, or all diagonals, of 4 x 4 words."""
    a, b, c, d = (
        np.concatenate([row[i * diagonal :], row[: i * diagonal]]) for i, row in enumerate(rows)
    )
    for word, (left, right) in zip(words, turns):
        a = a + b + word
        d = (d ^ a) << left | (d ^ a) >> 32 - left
        c = c + d
        b = (b ^ c) << right | (b ^ c) >> 32 - right
    return [
        np.concatenate([row[4 - i * diagonal :], row[: 4 - i * diagonal]])
        for i, row in enumerate((a, b, c, d))
    ]


def chacha20(key, count, nonce=0, block=0):
    """`count` words of RFC 8439's key stream, from a block on."""
    start = np.zeros((16, -(-count // 16)), np.uint32)
    start[:12] = np.frombuffer(b"expand 32-byte k" + key, "<u4")[:, None]
    start[12] = block + np.arange(start.shape[1])
    start[13:] = np.frombuffer(nonce.to_bytes(12, "little"), "<u4")[:, None]
    rows = start.reshape(4, 4, -1)
    for i in range(20):
        rows = mixed(rows, i % 2, ((16, 12), (8, 7)))
    return (np.concatenate(rows) + start).T.reshape(-1)[:count]


BLAKE3_START = np.array(
    [
        0x6A09E667,
        0xBB67AE85,
        0x3C6EF372,
        0xA54FF53A,
        0x510E527F,
        0x9B05688C,
        0x1F83D9AB,
        0x5BE0CD19,
    ],
    np.uint32,
)[:, None]
BLAKE3_ORDER = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]


def compressed(values, words, counter, length, flags):
    """BLAKE3's compression of n blocks at once: values 8 x n, words 16 x n."""
    n = values.shape[1]
    last = np.stack(
        [np.broadcast_to(np.asarray(x, np.uint32), n) for x in (counter, 0, length, flags)]
    )
    rows = [values[:4], values[4:], np.repeat(BLAKE3_START[:4], n, 1), last]
    for _ in range(7):
        for i in (0, 1):
            rows = mixed(
                rows,
                i,
                ((16, 20), (24, 25)),
                words[8 * i : 8 * i + 8].reshape(4, 2, n).swapaxes(0, 1),
            )
        words = words[BLAKE3_ORDER]
    return np.concatenate([rows[0] ^ rows[2], rows[1] ^ rows[3]])


def blake3(data):
    chunks = max(1, -(-len(data) // 1024))
    words = np.frombuffer(data.ljust(1024 * chunks, b"\0"), "<u4").reshape(chunks, 16, 16)
    sizes = np.minimum(1024, len(data) - 1024 * np.arange(chunks))
    values = np.repeat(BLAKE3_START, chunks, 1)
    for i in range(16):
        last = np.maximum(1, -(-sizes // 64)) == i + 1
        flags = (i == 0) + 2 * last + 8 * (last & (chunks == 1))
        after = compressed(
            values, words[:, i].T, np.arange(chunks), np.clip(sizes - 64 * i, 0, 64), flags
        )
        values = np.where((sizes > 64 * i) | (i == 0), after, values)
    while (pairs := values.shape[1] // 2) > 0:  # an odd one goes up as it is
        both = np.concatenate([values[:, 0 : 2 * pairs : 2], values[:, 1::2]])
        flags = 4 + 8 * (values.shape[1] == 2)
        parents = compressed(np.repeat(BLAKE3_START, pairs, 1), both, 0, 64, flags)
        values = np.concatenate([parents, values[:, 2 * pairs :]], 1)
    return values.T.astype("<u4").tobytes().hex()


def stream(count, *labels, seed=b""):
    """Words by labels: secret under a seed, public without."""
    text, letters = b"", {bytes: b"b", str: b"s", int: b"i"}
    for label in labels:
        data = label if isinstance(label, bytes) else str(label).encode()
        text += letters[type(label)] + uint64(len(data)) + data
    person = b"secureps-stream" if seed else b"secureps-public"
    return chacha20(hashlib.blake2b(text, digest_size=32, key=seed, person=person).digest(), count)


def unsafe(count, number, *labels):
    return stream(count, *labels, seed=b"secureps unsafe seed" + bytes(4) + uint64(number))


def floats(count, number):
    return ((unsafe(count, number, "floats") >> 8) / 2.0**23 - 1).astype(f)


# Ed25519 (RFC 8032); points are (X, Y, Z, T)

PRIME, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
CURVE = -121665 * pow(121666, -1, PRIME) % PRIME


def added(p, q):
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % PRIME, (p[1] + p[0]) * (q[1] + q[0]) % PRIME
    c, d = 2 * p[3] * q[3] * CURVE % PRIME, 2 * p[2] * q[2] % PRIME
    return (
        (b - a) * (d - c) % PRIME,
        (d + c) * (b + a) % PRIME,
        (d - c) * (d + c) % PRIME,
        (b - a) * (b + a) % PRIME,
    )


def multiple(number, point):
    result = (0, 1, 1, 0)
    for bit in bin(number)[2:]:
        result = added(result, result)
        result = added(result, point) if bit == "1" else result
    return result


def point_of(data):
    """A point; ValueError for what is none, or is written in a second way."""
    y, odd = int.from_bytes(data, "little") % 2**255, data[31] >> 7
    square = (y * y - 1) * pow(CURVE * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    x = x if x * x % PRIME == square else x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    if len(data) != 32 or y >= PRIME or x * x % PRIME != square or (x == 0 and odd):
        raise ValueError("not a point of Ed25519")
    x = x if x % 2 == odd else PRIME - x
    return x, y, 1, x * y % PRIME


def bytes_of(point):
    x, y = (value * pow(point[2], -1, PRIME) % PRIME for value in point[:2])
    return (y + (x % 2 << 255)).to_bytes(32, "little")


GENERATOR = point_of((4 * pow(5, -1, PRIME) % PRIME).to_bytes(32, "little"))


def hashed(*parts):
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % ORDER


def signed(seed, domain, message):
    """Public key and signature."""
    secret, text = hashlib.sha512(seed).digest(), uint64(len(domain)) + domain.encode() + message
    number = int.from_bytes(secret[:32], "little") % 2**254 // 8 * 8 + 2**254
    public, nonce = bytes_of(multiple(number, GENERATOR)), hashed(secret[32:], text)
    first = bytes_of(multiple(nonce, GENERATOR))
    return public.hex(), (
        first + ((nonce + hashed(first, public, text) * number) % ORDER).to_bytes(32, "little")
    ).hex()


def holds(public, signature, domain, message):
    """Whether a signature is right, and its key is not of small order."""
    x, y, z, t = point_of(unhex(public))
    first = unhex(signature)[:32]
    last = unhex(signature)[32:]
    s = int.from_bytes(last, "little")
    challenge = hashed(first, unhex(public), uint64(len(domain)), domain.encode(), message)
    mine = added(multiple(s, GENERATOR), multiple(challenge, (-x, y, z, -t)))
    return (
        bytes_of(mine) == first
        and s < ORDER
        and len(signature) == 128
        and multiple(8, (x, y, z, t))[0] != 0
    )


# Payloads: rlwe block


class Ring:
    """Elements are N values modulo each prime; coefficients hold digits of integers to `levels`."""

    def __init__(self, name, levels=1, capacity=1, most_weight=1):
        self.name, (self.n, self.primes) = name, RINGS[name]
        self.q, self.base, places = math.prod(self.primes), levels * capacity + 1, np.arange(self.n)
        if self.base < 2:
            raise ValueError("no levels or no capacity")
        least = 20 * math.sqrt(41 / 2 * capacity * most_weight)
        self.digits = next(d for d in itertools.count() if self.q // self.base ** (d + 1) < least)
        self.delta, self.slots = self.q // self.base**self.digits, self.digits * self.n
        self.bytes = self.n * len(self.primes) // 2 * 53 // 8
        # place x N / 32 + y holds value 32 y + x
        self.order = places.reshape(self.n // 32, 32).T.reshape(-1)
        self.powers = []  # of psi, in the order of reversed bits
        bits = self.n.bit_length() - 1
        for p in self.primes:
            roots = (pow(g, (p - 1) // (2 * self.n), p) for g in itertools.count(2))
            psi = next(root for root in roots if pow(root, self.n, p) == p - 1)
            powers = [1]
            while len(powers) < self.n:
                powers.append(powers[-1] * psi % p)
            self.powers.append(
                np.array(powers)[sum((places >> i & 1) << (bits - 1 - i) for i in range(bits))]
            )

    def transformed(self, coefficients, i):
        p, x, m = self.primes[i], np.asarray(coefficients, np.int64) % self.primes[i], 1
        while m < self.n:
            low, high = x.reshape(m, 2, -1).swapaxes(0, 1)
            high = high * self.powers[i][m : 2 * m, None] % p
            x, m = np.stack([low + high, low - high], 1).reshape(-1) % p, 2 * m
        return x[self.order]

    def coefficients(self, values, i):
        p, x, m = self.primes[i], np.empty(self.n, np.int64), self.n // 2
        x[self.order] = values
        while m:
            low, high = x.reshape(m, 2, -1).swapaxes(0, 1)
            # psi^-i is -psi^(N - i)
            difference = (high - low) % p * self.powers[i][m : 2 * m][::-1, None]
            x, m = np.stack([low + high, difference], 1).reshape(-1) % p, m // 2
        return x * pow(self.n, -1, p) % p

    def elements(self, slots):
        return -(-slots // self.slots)

    def public(self, run, group, layout, first, count):
        """a_j of `count` elements, prime by prime."""
        key = digest("secureps-a", run, self.name.encode(), group.encode(), layout)
        window = self.n + max(128, self.n // 32)
        size = window * len(self.primes)
        words = (
            chacha20(key, size * count, block=first * size // 16)
            .astype(np.int64)
            .reshape(count, -1, window)
        )
        return [
            [x[x < 2**32 // p * p][: self.n] % p for x, p in zip(element, self.primes)]
            for element in words
        ]

    def sealed(self, values, key, errors, public):
        """A block: c = a s + e + Delta m, a word modulo each Q, 64 words packed as 53."""
        values, words = (
            np.pad(values, (0, -len(values) % self.slots)).reshape(-1, self.digits, self.n),
            [],
        )
        keys = [self.transformed(key, i) for i in range(len(self.primes))]
        for digits, error, a in zip(values, errors, public):
            c = []
            for i, p in enumerate(self.primes):
                m = sum(digit * pow(self.base, k, p) % p for k, digit in enumerate(digits)) % p
                c.append((a[i] * keys[i] + self.transformed(error + self.delta % p * m, i)) % p)
            for low, high, p, q in zip(c[::2], c[1::2], self.primes[::2], self.primes[1::2]):
                words.append(low + p * ((high - low) * pow(p, -1, q) % q))
        bits = np.unpackbits(
            np.concatenate(words).astype("<u8").view(np.uint8), bitorder="little"
        ).reshape(-1, 64)
        return np.packbits(bits[:, :53].reshape(-1), bitorder="little").tobytes()

    def total(self, blocks, weights):
        """The weighted sum: words modulo each Q, not packed."""
        moduli = np.repeat([p * q for p, q in zip(self.primes[::2], self.primes[1::2])], self.n)
        total = 0
        for block, weight in zip(blocks, weights, strict=True):
            bits = np.unpackbits(np.frombuffer(block, np.uint8), bitorder="little").reshape(-1, 53)
            words = (
                np.packbits(np.pad(bits, ((0, 0), (0, 11))), bitorder="little")
                .view("<u8")
                .astype(np.int64)
            )
            if (words.reshape(-1, len(moduli)) >= moduli).any():
                raise ValueError("a word is not below its Q")
            total = (total + words.reshape(-1, len(moduli)) * weight) % moduli
        return total.reshape(-1).astype("<u8")

    def opened(self, total, key, weights, public, slots):
        """The sums of integers, and whether the residual E is small enough."""
        sums, errors = [], []
        for words, a in zip(total.astype(np.int64).reshape(len(public), -1, self.n), public):
            v = 0
            for i, p in enumerate(self.primes):
                x = self.coefficients((words[i // 2] - a[i] * self.transformed(key, i)) % p, i)
                v = v + x.astype(object) * (self.q // p * pow(self.q // p, -1, p))
            v = (v + self.delta // 2) % self.q
            errors.append(v % self.delta - self.delta // 2)
            sums += [v // self.delta // self.base**k % self.base for k in range(self.digits)]
        near = math.sqrt((np.concatenate(errors) ** 2).mean()) <= 2 * math.sqrt(
            41 / 2
        ) * math.hypot(*weights)
        return np.concatenate(sums)[:slots].astype(np.int64), near


# A committee of key holders


def subsets_of(n, t):
    """A, and B."""
    if not 1 < t <= n <= 16:
        raise ValueError("no committee")
    a = list(itertools.combinations(range(n), t - 1))
    return a, list(itertools.combinations(range(n), t - 2)) if t < n else []


def factor(subset, x):
    return math.prod((i + 1 - x) * pow(i + 1, -1, FIELD) for i in subset) % FIELD


def shared(name, subset, seed, n):
    """r_A of a submission, or z_B of D."""
    words = (
        chacha20(digest("secureps-key-share", name, bytes(subset), seed), n + 64).astype(np.int64)
        % 2**31
    )
    return words[words != FIELD][:n]


def key_sum(answers, corrections, weights):
    """Lagrange's value at 0 of {holder: answer}, plus weighted corrections, within P/2 of 0."""
    total = (
        sum(weight * correction for weight, correction in zip(weights, corrections, strict=True))
        % FIELD
    )
    for k, answer in answers.items():
        total = (
            total
            + answer
            * (math.prod((j + 1) * pow(j - k, -1, FIELD) for j in answers if j != k) % FIELD)
            % FIELD
        )
    return (total + FIELD // 2) % FIELD - FIELD // 2


def hpke_schedule(secret, info):
    """Key and nonce: base mode, X-Wing, SHAKE256 in one stage, ChaCha20-Poly1305."""

    def sized(data):
        return struct.pack(">H", len(data)) + data

    suite, length = b"HPKE" + struct.pack(">HHH", 0x647A, 0x0011, 0x0003), 32 + 12 + 64
    text = (
        sized(b"")
        + sized(secret)
        + b"HPKE-v1"
        + suite
        + sized(b"secret")
        + struct.pack(">H", length)
    )
    derived = hashlib.shake_256(text + b"\0" + sized(b"") + sized(info)).digest(length)
    return derived[:32].hex(), derived[32:44].hex()


# Payloads: values, codec, scales, noise, differences


def rounded(y, words):
    return (np.floor(y) + (words < 2.0**32 * (y - np.floor(y)))).astype(np.int64)


def mean_of(sums, z, weight, limit, shares):
    return ((sums - z * weight) * (limit / z) / shares).astype(f)


def rotated(x, words, back):
    signs = (
        1.0 - 2.0 * np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")[: len(x)]
    )
    at = 0
    x = x.copy() if back else x * signs
    for size in (1024, 256, 64, 16, 4):
        count, half = (len(x) - at) // size, 1
        pieces = x[at : at + count * size]
        while half < size and count:
            low, high = pieces.reshape(-1, 2, half * count).swapaxes(0, 1)
            pieces, half = np.stack([low + high, low - high], 1).reshape(-1), 2 * half
        x[at : at + count * size], at = pieces / math.sqrt(size), at + count * size
    return x * signs if back else x


class Codec:
    """The stages of a block: a value of each run, and their rotation."""

    def __init__(self, group, block, version, base, size, one_in, rotates, feedback):
        starts = np.arange(0, size, one_in)
        lengths, self.size, self.rotates = np.minimum(one_in, size - starts), size, rotates
        self.places = starts + (
            stream(len(starts), "support", group, block, version, base).astype(int) * lengths >> 32
        )
        self.factors = 1 if feedback else lengths
        self.words = stream(-(-len(starts) // 32), "rotate", group, block)

    def encoded(self, values):
        x = values[self.places].astype(np.float64)
        return rotated(x, self.words, False) if self.rotates else x

    def decoded(self, mean):
        x, result = mean.astype(np.float64), np.zeros(self.size, f)
        result[self.places] = (rotated(x, self.words, True) if self.rotates else x) * self.factors
        return result


def grown(values, payload, bits):
    """A block and its differences of one version."""
    heads = -(-len(values) // 512)
    powers = (
        2.0
        ** (np.frombuffer(payload[:heads], np.uint8).astype(int) - 128).repeat(512)[: len(values)]
    )
    codes = np.unpackbits(np.frombuffer(payload[heads:], np.uint8), bitorder="little").reshape(
        -1, bits
    )
    return values + (
        ((codes << np.arange(bits)).sum(1)[: len(values)] - 2 ** (bits - 1)) * powers
    ).astype(f)


def indicator(clip):
    """h: a quarter of the clip in float32, towards zero."""
    return float(f(clip / 4) if f(clip / 4) <= clip / 4 else np.nextafter(f(clip / 4), f(0)))


def next_scale(mover, scale, a, clip, quantile, limit):
    if mover == "MovingRange":
        return f(min(max(2 * scale * (a / limit + 1), scale / 4, 2.0**-20), scale * 4, 1.0))
    if mover != "AdaptiveClip":
        raise ValueError("no such mover of scales")
    return f(
        min(
            max(scale * math.exp(-0.2 * (a / (2 * indicator(clip)) + 0.5 - quantile)), 2.0**-10),
            2.0**10,
        )
    )


def root(square, up):
    """The square root of a rational number in float64, rounded up or down."""
    result = math.sqrt(square)
    off = Fraction(result) ** 2 < square if up else Fraction(result) ** 2 > square
    return math.nextafter(result, math.inf if up else 0) if off else result


def skellam_terms(variance, most=0):
    """P(X = 0), P(X = 1), ... beyond `most`: e^-v I_k(v), by ratios I_k / I_(k-1) from the end."""
    if not (0 < variance <= 2**34 and most <= 2**24):
        raise ValueError("a variance out of bounds")
    ratio, ratios = 0.0, []
    for k in range(most + int(12 * math.sqrt(variance)) + 60, 0, -1):
        ratio = 1 / (2 * k / variance + ratio)
        ratios.append(ratio)
    terms = np.cumprod([1.0, *reversed(ratios)])
    return terms / (2 * terms.sum() - 1)


def skellam(variance, words):
    terms = skellam_terms(variance)
    below = np.cumsum(2 * terms) - terms[0]  # P(abs(X) <= k)
    pairs = words.astype("<u4").view("<u8")
    u = (pairs >> 2) / 2.0**62
    sizes = np.searchsorted(below, u, side="right")
    if min(np.abs(below[sizes] - u).min(), np.abs(below[sizes - 1] - u)[sizes > 0].min()) < 1e-13:
        raise ValueError("a draw is nearer to a border than float64 can tell")
    return np.where(pairs % 2, -sizes, sizes)


class Mechanism:
    """Step, limit and variance for d values within a norm, and what a release of them is."""

    def __init__(self, norm, d, bits, multiplier, placement, honest):
        self.norm = norm
        self.d = d
        self.z = 2 ** (bits - 1) - 1
        self.multiplier = multiplier
        self.placement = placement
        self.sources, low, high = honest if placement == "distributed" else 1, -(2**17), 2**17
        while low < high:  # the least place, in the order of steps, that fits
            low, high = (
                (low, (low + high) // 2)
                if self.fits((low + high) // 2)
                else ((low + high) // 2 + 1, high)
            )
        self.fits(low)

    def fits(self, place):
        self.step, n = (1024 + place % 1024) * 2.0 ** (place // 1024), max(1, self.sources - 1)
        c = self.norm / self.step
        self.limit = math.floor(c * c + self.d / 4 + c + math.sqrt(self.d) / 2)
        self.variance = self.multiplier**2 * self.limit / n
        reach = min(math.ceil(c), math.isqrt(self.limit))
        self.most = [root(self.limit, True), root(min(self.d * self.limit, self.limit**2), True)]
        self.stddev, room = root(Fraction(self.variance) * n, False), self.z - reach
        if reach > self.z or self.variance > 2**34:
            return False
        far = room > 40 * math.sqrt(self.variance) + 60
        self.clamping = (
            0.0 if far else 2 * n * self.d * skellam_terms(self.variance, room)[room + 1 :].sum()
        )
        return self.clamping <= 2.0 ** (-128 if self.placement == "distributed" else -64)

    def rounded(self, values, number):
        y = values.astype(np.float64) * (1 / self.step * (1 - 2.0**-50))
        tries = (
            rounded(y, words) for words in unsafe(100 * len(y), number, "round").reshape(100, -1)
        )
        return next(z for z in tries if (z * z).sum() <= self.limit)

    def makes(self, release):
        """Whether a release is this: its clamping, a sum of many floats, to twelve digits."""
        theirs = [release[x] for x in ("l2", "l1", "stddev", "sources")]
        near = math.isclose(
            0.0 if self.placement == "local" else self.clamping, release["clamping"], rel_tol=1e-12
        )
        return near and theirs == [*self.most, self.stddev, self.sources]


# A step; Journals, logs and epsilon


def stepped(optimizer, x, u, m, v, t, versions):
    """x, m and v after the step; m and v are None before the first."""
    schedule, b, (b1, b2) = optimizer["schedule"], optimizer["momentum"], optimizer["betas"]
    name, tau, m = optimizer["name"], f(optimizer["tau"]), np.zeros_like(x) if m is None else m
    v = np.full_like(x, optimizer["tau"] ** 2 if name == "yogi" else 0) if v is None else v
    r = (
        optimizer["learning_rate"]
        * {
            "constant": 1.0,
            "cosine": (1 + math.cos(math.pi * t / versions)) / 2,
            "exponential": schedule["decay"] ** t,
            "warmup": min(1.0, (t + 1) / schedule["warmup_steps"]),
        }[schedule["name"]]
    )
    if name == "sgd":
        return x + f(r) * u, m, v
    if name in ("momentum", "nesterov"):
        m = f(b) * m + u
        return x + f(r) * (m if name == "momentum" else f(b) * m + u), m, v
    m = f(b1) * m + f(1 - b1) * u
    if name in ("adam", "fedadam"):
        v = f(b2) * v + f(1 - b2) * (u * u)
    elif name in ("yogi", "fedyogi"):
        v = v - f(1 - b2) * (u * u) * np.sign(v - u * u)
    else:
        v = v + u * u
    if name == "adam":
        return (
            x
            + f(r / (1 - b1 ** (t + 1))) * m / (np.sqrt(v) / f(math.sqrt(1 - b2 ** (t + 1))) + tau),
            m,
            v,
        )
    r = r * math.sqrt(1 - b2 ** (t + 2)) / (1 - b1 ** (t + 2)) if name == "fedadam" else r
    return x + f(r) * m / (np.sqrt(v) + tau), m, v


def cost(a, x):
    """R of a release, or of a charge, at order a."""
    if "l2" in x:
        l2, l1, s2 = x["l2"] ** 2, x["l1"], x["stddev"] ** 2
        return a * l2 / (2 * s2) + min(((2 * a - 1) * l2 + 6 * l1) / (4 * s2**2), 3 * l1 / (2 * s2))
    q, s2 = x["sample_rate"], x["noise_multiplier"] ** 2
    logs = [
        math.log(math.comb(a, k))
        + k * math.log(q)
        + (k * k - k) / (2 * s2)
        + (a > k and (a - k) * math.log1p(-q))
        for k in range(a + 1)
        if q < 1 or k == a
    ]
    return x["steps"] * (max(logs) + math.log(sum(math.exp(y - max(logs)) for y in logs))) / (a - 1)


def epsilon(facts, delta):
    orders, found = [*range(2, 129), *(round(128 * 1.05**n) for n in range(250))], 0.0
    if "steps" in facts[0]:
        orders = [*range(2, 65), 80, 96, 128, 192, 256, 512, 1024]
    curve = [(a, sum(cost(a, x) for x in facts)) for a in orders]
    one, others = (
        sum(x.get("clamping", 0.0) for x in facts if (x.get("sources") == 1) == y)
        for y in (True, False)
    )
    for _ in range(20):  # delta' depends on epsilon
        left = delta - one - (1 + math.exp(min(found, 700))) * others
        found = min(r + math.log(1 - 1 / a) - math.log(a * left) / (a - 1) for a, r in curve)
    return found


# Messages in another language

HEADS = {  # the type, the form of the value or length, and the least that needs it
    0xC4: (bytes, "B", 0),
    0xC5: (bytes, "H", 2**8),
    0xC6: (bytes, "I", 2**16),
    0xCB: (float, "d", -math.inf),
    0xCC: (int, "B", 2**7),
    0xCD: (int, "H", 2**8),
    0xCE: (int, "I", 2**16),
    0xCF: (int, "Q", 2**32),
    0xD0: (int, "b", -(2**5)),
    0xD1: (int, "h", -(2**7)),
    0xD2: (int, "i", -(2**15)),
    0xD3: (int, "q", -(2**31)),
    0xD9: (str, "B", 32),
    0xDA: (str, "H", 2**8),
    0xDB: (str, "I", 2**16),
    0xDC: (list, "H", 16),
    0xDD: (list, "I", 2**16),
    0xDE: (dict, "H", 16),
    0xDF: (dict, "I", 2**16),
}


def unpacked(data):
    """A value and the rest; nil fields are left out, and bytes are hexadecimal text.

    ValueError unless it is in its one spelling.
    """
    code, data = data[0], data[1:]
    if code < 0x80 or code >= 0xE0 or code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}.get(
            code, code if code < 0x80 else code - 256
        ), data
    if code < 0xC0:
        kind, size = (
            (dict, code - 0x80)
            if code < 0x90
            else (list, code - 0x90)
            if code < 0xA0
            else (str, code - 0xA0)
        )
    else:
        kind, form, least = HEADS[code]
        (size,), data = struct.unpack_from(">" + form, data), data[struct.calcsize(form) :]
        if (size >= least) if kind is int and least < 0 else (size < least):
            raise ValueError("not the shortest spelling")
    if kind in (int, float):
        return size, data
    if kind in (str, bytes):
        return data[:size].decode() if kind is str else data[:size].hex(), data[size:]
    items = []
    for _ in range(2 * size if kind is dict else size):
        item, data = unpacked(data)
        items.append(item)
    return {
        x: y for x, y in zip(items[::2], items[1::2]) if y is not None
    } if kind is dict else items, data


# The files of vectors


def check_seeds(c, data):
    kinds, seed = {"str": str, "int": int, "bytes": unhex}, unhex(data["secret_seed"])
    for entry in data["streams"]:
        c.at = entry["labels"]
        labels = [kinds[x](y) for x, _, y in (text.partition(" ") for text in entry["labels"])]
        c.array("secret streams", stream(40, *labels, seed=seed), entry["secret"])
        c.array("unsafe streams", unsafe(40, data["unsafe_seed"], *labels), entry["unsafe"])
        c.array("public streams", stream(40, *labels), entry["public"])
    for c.at, expected in data["blake3"].items():
        c.that("BLAKE3", blake3(bytes(i % 251 for i in range(int(c.at)))) == expected)
    for c.at, expected in data["digests"]:
        c.that("digests", digest("a domain", *map(unhex, c.at)).hex() == expected)
    mine, c.at = signed(seed, "a domain", b"a message"), ""
    c.that("Ed25519 key and signature", mine == (data["public"], data["signature"]))
    c.that("Ed25519 verification", holds(*mine, "a domain", b"a message"))


def check_polynomials(c, data):
    for entry in data["polynomials"]:
        ring, c.at = Ring(entry["ring"]), entry["ring"]
        (mine,) = ring.public(unhex(data["run"]), "all", unhex(data["layout"]), entry["element"], 1)
        for a, expected in zip(mine, entry["a"], strict=True):
            c.array("polynomials", a, expected)


def check_payload(c, what, data, entry):
    c.that(what, {"bytes": len(data), "first": data[:16].hex(), "blake3": blake3(data)} == entry)


def check_ciphertexts(c, data):
    def small(words):
        bits = words.reshape(3, -1).T.astype("<u4", order="C").view(np.uint8)
        bits = np.unpackbits(bits, axis=1, bitorder="little").astype(np.int64)
        return bits[:, :41].sum(1) - bits[:, 41:82].sum(1)

    run, layout, weights = unhex(data["run"]), unhex(data["layout"]), data["weights"]
    for entry in data["sums"]:
        ring = Ring(entry["ring"], entry["levels"], entry["capacity"], entry["most_weight"])
        c.at = f"{ring.name}, block {entry['block']}"
        count = ring.elements(entry["slots"])
        blocks = []
        key = 0
        c.that(
            "digits and Delta", (ring.digits, str(ring.delta)) == (entry["digits"], entry["delta"])
        )
        public = ring.public(run, "all", layout, entry["block"] * count, count)
        for i, (expected, weight) in enumerate(zip(entry["blocks"], weights, strict=True)):
            s = small(chacha20(bytes([i] * 32), 3 * ring.n))
            errors = chacha20(
                bytes([i] * 32), 3 * ring.n * count, nonce=1 + entry["block"]
            ).reshape(count, -1)
            values = 7919 * np.arange(1, entry["slots"] + 1) * (i + 1) % (entry["levels"] + 1)
            blocks.append(ring.sealed(values, s, map(small, errors), public))
            check_payload(c, "blocks", blocks[i], expected)
            key = key + weight * s
        total = ring.total(blocks, weights)
        sums, near = ring.opened(total, key, weights, public, entry["slots"])
        check_payload(c, "totals", total.tobytes(), entry["total"])
        c.array("key sums", key, entry["key_sum"])
        c.array("opened sums", sums, entry["opened"])
        c.that("residuals", near)


def check_shares(c, data):
    about = unhex(data["about"])
    for committee in data["committees"]:
        a, b = subsets_of(len(committee["holders"]), committee["threshold"])
        weights = committee["weights"]
        parts = []
        corrections = []
        answers = {}
        seeds_of_b = []
        c.at = f"threshold {committee['threshold']}"
        c.that("subsets", list(map(list, a + b)) == committee["subsets"])
        for i, member in enumerate(committee["members"]):
            key, name = (3 + i) * np.arange(2048) % 83 - 41, unhex(member["id"])
            seeds, c.at = [bytes([1 + 100 * i + j] * 32) for j in range(len(a + b))], f"member {i}"
            mine = [
                digest("secureps-key-seed", name, bytes(s), seed).hex()
                for s, seed in zip(a + b, seeds)
            ]
            c.that("commitments", mine == member["commitments"])
            parts.append([shared(name, s, seed, 2048) for s, seed in zip(a, seeds)])
            seeds_of_b.append(seeds[len(a) :])
            corrections.append((key - sum(parts[i])) % FIELD)
            c.array("keys", key, member["key"])
            c.array("corrections", corrections[i], member["correction"])
        zeros = [
            shared(about, s, digest("secureps-zero-share", about, bytes(s), *seeds), 2048)
            for s, seeds in zip(b, zip(*seeds_of_b))
        ]
        for k, holder in enumerate(committee["holders"]):
            c.at = f"holder {k} of {len(committee['holders'])}"
            c.that(
                "holders' seeds", [j for j, s in enumerate(a + b) if k not in s] == holder["seeds"]
            )
            shares = [
                sum(r * factor(s, k + 1) % FIELD for s, r in zip(a, rs) if k not in s) % FIELD
                for rs in parts
            ]
            terms = [
                z * ((k + 1) * factor(s, k + 1) % FIELD) % FIELD
                for s, z in zip(b, zeros)
                if k not in s
            ]
            zero = sum(terms, np.zeros(2048, int)) % FIELD
            answers[k] = (
                sum(weight * share for weight, share in zip(weights, shares)) + zero
            ) % FIELD
            for share, expected in zip(shares, holder["shares"], strict=True):
                c.array("shares", share, expected)
            c.array("shares of zero", zero, holder["share_of_zero"])
            c.array("answers", answers[k], holder["answer"])
        opened = {k: answers[k] for k in committee["opened_by"]}
        c.at = f"threshold {committee['threshold']}"
        c.array("key sums", key_sum(opened, corrections, weights), committee["key_sum"])


def check_envelopes(c, data):
    """Not checked: the public key and the opening, which need ML-KEM and X25519."""
    info = digest("secureps-envelope-2", data["bound_to"].encode())
    c.that(
        "key schedule",
        hpke_schedule(unhex(data["kem_secret"]), info) == (data["key"], data["nonce"]),
    )
    c.that("length", len(unhex(data["envelope"])) == 1088 + 32 + len(unhex(data["opens_to"])) + 16)


def check_messages(c, data):
    """Not checked: that all fields are there, which needs the classes."""
    for name, fields, text in data["messages"]:
        value, rest = unpacked(unhex(text))
        c.at = name  # as text, fields are compared in their order and with their type
        c.that("messages", json.dumps(value) == json.dumps([name, fields]) and not rest)


def receipt_text(receipt, **changes):
    return canonical("Receipt", receipt, ("correction",), blocks=[], **changes)


def receipt_digest(receipt):
    return digest("secureps-receipt", receipt_text(receipt))


def receipt_root(receipt):
    corrections = [receipt["correction"]] if "correction" in receipt else []
    return digest("secureps-ciphertext-root", *map(unhex, receipt["blocks"] + corrections)).hex()


def opening_digest(run, cohort, receipts):
    text = canonical("Cohort", cohort, ("scale",), number=0, epoch=0)
    return digest("secureps-opening", run, text, *map(receipt_digest, receipts)).hex()


def model_digest(group, version, blocks):
    return digest("secureps-model", group.encode(), uint64(version), *map(unhex, blocks)).hex()


def check_receipts(c, data):
    """Not checked: the receipt's envelopes, which are random."""
    receipt = data["receipt"]
    cohort = data["cohort"]
    run = unhex(data["run"])
    public = data["public"]
    text = receipt_text(receipt, signature="")
    header = data["header_signed"]
    whole = canonical("Cohort", cohort)
    name = canonical("SubmissionId", receipt["id"])
    fields = json.loads(header.removeprefix("BlockHeader:"))
    c.that("signed receipt", text.decode() == data["receipt_signed"])
    c.that(
        "signature of the receipt", holds(public, receipt["signature"], "secureps-receipt", text)
    )
    c.that("signed header", canonical("BlockHeader", fields, signature="").decode() == header)
    c.that(
        "signature of the header",
        holds(public, data["header_signature"], "secureps-block", header.encode()),
    )
    c.that("root", receipt_root(receipt) == receipt["root"])
    c.that("digest of the receipt", receipt_digest(receipt).hex() == data["receipt_digest"])
    c.that("base", model_digest("all", 3, receipt["blocks"]) == data["base"])
    c.that(
        "id of the shared key", digest("secureps-shared-key", run, name).hex() == data["sharing_id"]
    )
    bound = b"holder-1\n" + receipt_text(receipt, signature="", envelopes=[])
    c.that(
        "text that envelopes are bound to",
        bound.decode() == data["envelope_of_holder_1_is_bound_to"],
    )
    c.that("canonical cohort", whole.decode() == data["cohort_canonical"])
    c.that(
        "digest of the cohort", digest("secureps-cohort", run, whole).hex() == data["cohort_digest"]
    )
    c.that(
        "digest of the opening", opening_digest(run, cohort, [receipt]) == data["opening_digest"]
    )


def check_noise(c, data):
    """Not checked: the second pair of words of an undecided draw."""
    number, update = float.fromhex, floats(300, 5) / f(16)
    for entry in data["skellam"]:
        c.at = f"variance {entry['variance']}"
        c.array(
            "draws", skellam(number(entry["variance"]), unsafe(2000, 3, "skellam")), entry["draws"]
        )
    for entry in data["mechanisms"]:
        c.at = entry["placement"]
        mine = Mechanism(1.5, 300, 16, 1.25, entry["placement"], entry["honest"])
        c.that("steps", mine.step == number(entry["step"]))
        c.that("limits", mine.limit == entry["limit"])
        c.that("variances", mine.variance == number(entry["variance"]))
        c.that("releases", mine.makes(entry["release"]))
        z = sent = mine.rounded(update, 5)
        if c.at != "aggregator":
            sent = np.clip(z + skellam(mine.variance, unsafe(600, 5, "noise")), -mine.z, mine.z)
        c.array("updates", update, entry["update"])
        c.array("rounded", z, entry["rounded"])
        c.array("sent", sent + mine.z, entry["sent"])
    h = indicator(1.5)
    c.that("indicator", h == number(data["indicator"]))
    c.that("norm", root(Fraction(1.5) ** 2 + Fraction(h) ** 2, True) == number(data["norm"]))
    for *c.at, expected in data["scales"]:
        c.that("scales", float(next_scale(*c.at, 1.5, 0.5, 0.5)) == number(expected))


def check_ledgers(c, data):
    """Not checked: charges' orders between the whole ones, which can only lower epsilon."""
    for facts, expected in data["charges"] + data["releases"]:
        c.at = expected
        c.that("epsilons", abs(epsilon(facts, data["delta"]) - expected) <= 1e-5)


def check_codecs(c, data):
    values = floats(1500, 1)
    where = (data["group"], data["block"], data["version"], unhex(data["base"]))
    c.array("values", values, data["values"])
    for entry in data["chains"]:
        c.at = ", ".join(
            f"{name} {entry[name]}" for name in ("one_in", "rotate", "feedback", "apart")
        )
        size = len(values) - entry["apart"]  # the last `apart` values are touched by no stage
        codec = Codec(*where, size, entry["one_in"], entry["rotate"], entry["feedback"])
        encoded = codec.encoded(values[:size])
        c.array("encoded", np.concatenate([encoded, values[size:]]), entry["encoded"])
        c.array(
            "decoded", np.concatenate([codec.decoded(encoded), values[size:]]), entry["decoded"]
        )
    grid, changed, c.at = data["grid"], data["difference"], ""
    z, limit = 2 ** (grid["bits"] - 1) - 1, grid["range"]
    y = np.clip(values.astype(np.float64) * grid["share"], -limit, limit) / limit * z
    u = z + rounded(y, unsafe(1500, 2, "round"))
    c.array("integers", u, grid["integers"])
    c.array("mean", mean_of(3 * u, z, grid["weight"], limit, 15 / 8), grid["mean"])
    c.array(
        "differences",
        grown(floats(1500, 4), unhex(changed["payload"]), changed["bits"]),
        changed["after"],
    )


def check_optimizers(c, data):
    c.array("start", floats(20, 1), data["start"])
    for entry in data["optimizers"]:
        x, m, v, c.at = floats(20, 1), None, None, entry["optimizer"]["name"]
        for t, u in enumerate(floats(60, 2).reshape(3, 20)):
            x, m, v = stepped(entry["optimizer"], x, u, m, v, t, data["versions"])
        c.array("values", x, entry["values"])
        for slot, expected in entry["slots"].items():
            c.array("slots", {"momentum": m, "second": v}[slot], expected)


# The recorded run


def name_of(id):
    return f"{id['client']}/{id['group']}/{id['sequence']}"


def parts_of(values, sizes):
    return np.split(values, np.cumsum(sizes)[:-1])


def rows(run, who, what, /, **fields):
    """The journal's records of a party and class that have these fields."""
    return [
        x
        for party, kind, x in run.records
        if (party, kind) == (who, what) and fields.items() <= x.items()
    ]


def read_run(c, folder):
    """What the files of the run say, and digests of it."""
    run = SimpleNamespace(
        **json.loads((folder / "run.json").read_text()), folder=folder, m=None, v=None
    )
    journals = lzma.decompress((folder / "journals.jsonl.xz").read_bytes())
    run.rows = [json.loads(line) for line in journals.splitlines()]
    run.records = [(party, kind, json.loads(text)) for party, _, _, kind, text, _ in run.rows]
    run.plan = json.loads(run.run["plan"])["plan"]
    (run.group,) = run.layout["groups"]
    roster = json.loads(run.roster)
    (run.rule,) = run.plan["group"]
    run.receipts = [x["receipt"] for x in rows(run, "coordinator", "Submit")]
    run.sizes = [
        min(run.group["block_values"], run.group["size"] - at)
        for at in range(0, run.group["size"], run.group["block_values"])
    ]
    run.slots = [-(-size // run.group["one_in"]) for size in run.sizes]
    run.certificates, noise = {x["name"]: x for x in roster["certificates"]}, run.plan["privacy"]
    run.holders = sorted(name for name, x in run.certificates.items() if x["role"] == "holder")
    run.noise = Mechanism(
        run.rule["clip"],
        sum(run.slots),
        run.rule["bits"],
        noise["noise_multiplier"],
        noise["placement"],
        noise["honest"],
    )
    cipher, levels = run.plan["cipher"], 2 * run.noise.z
    names = list(RINGS)[3:] if cipher["security"] == "conservative" else list(RINGS)[:3]
    rings = [Ring(name, levels, cipher["capacity"]) for name in names]
    run.ring = min(
        rings,
        key=lambda ring: (ring.elements(run.plan["block_size"]) * ring.bytes + 4 * ring.n, ring.n),
    )
    run.signature = roster["signature"]
    run.digest = digest(
        "secureps-roster", *(canonical("Certificate", x) for x in roster["certificates"])
    )
    run.committee = digest(
        "secureps-committee",
        *(
            part
            for name in run.holders
            for part in (name.encode(), unhex(run.certificates[name]["cipher_key_digest"]))
        ),
    )
    run.layout_digest = digest("secureps-layout", canonical("Layout", run.layout))
    schema = digest("secureps-schema", canonical("Schema", run.run["schema"]))
    run.id = digest(
        "secureps-run",
        run.run["plan"].encode(),
        schema,
        run.layout_digest,
        run.committee,
        run.digest,
        unhex(run.run["nonce"]),
    )
    return run


def check_roster_and_rows(c, run):
    """Not checked: journals of clients and holders, which are not recorded."""
    for c.at, x in run.certificates.items():
        text = canonical("Certificate", x, signature="")
        c.that("certificates", holds(run.ca, x["signature"], "secureps-certificate", text))
    (keys,), last, c.at = rows(run, "coordinator", "KeyCommittee"), {}, ""
    c.that("key holders", (keys["committee"], keys["holders"]) == (run.run["holders"], run.holders))
    c.that("signature of the roster", holds(run.ca, run.signature, "secureps-roster", run.digest))
    mine = run.layout_digest.hex(), run.committee.hex(), run.digest.hex()
    c.that(
        "digests of layout, holders, roster",
        mine == tuple(run.run[x] for x in ("layout", "holders", "roster")),
    )
    c.that(
        "canonical plan",
        canonical("", json.loads(run.run["plan"])).decode() == ":" + run.run["plan"],
    )
    for c.at, key in zip(run.holders, keys["keys"], strict=True):
        mine = blake2b(b"secureps-envelope-public-key-2\n" + unhex(key)).hex()
        c.that("holders' public keys", mine == run.certificates[c.at]["cipher_key_digest"])
    for party, number, time, kind, text, chain in run.rows:
        before, c.at = last.get(party, (0, "")), f"{party} row {number}"
        place = struct.pack("<qd", number, time)
        mine = digest("secureps-journal", unhex(before[1]), place, kind.encode(), text.encode())
        c.that("rows in chains", (number, chain) == (before[0] + 1, mine.hex()))
        last[party] = number, chain
    for c.at in last:
        (pinned,) = rows(run, c.at, "RunPinned")
        groups = [{"group": run.group["name"], "owners": run.owners}]
        c.that("pinned runs", pinned["run"] == run.run and pinned["placement"]["groups"] == groups)


def check_run_receipts(c, run):
    """Not checked: envelopes, their seeds, and commitments and shares of these: ML-KEM."""
    a, b = subsets_of(run.plan["cipher"]["holders"], run.plan["cipher"]["threshold"])
    envelope = 1088 + 32 + 32 * sum(0 not in s for s in a + b) + 16
    for x in run.receipts:
        c.at, client = name_of(x["id"]), x["id"]["client"]
        key, update = run.certificates[client]["public_key"], x["purpose"] == "update"
        c.that(
            "signatures",
            holds(key, x["signature"], "secureps-receipt", receipt_text(x, signature="")),
        )
        c.that("roots", (receipt_root(x), x["run"]) == (x["root"], run.id.hex()))
        for block, (owner, expected) in enumerate(zip(run.owners, x["blocks"], strict=True)):
            (header,) = rows(
                run, owner, "BlockHeader", author=client, sequence=x["id"]["sequence"], block=block
            )
            text = canonical("BlockHeader", header, signature="")
            mine = (run.id.hex(), expected, x["purpose"])
            c.that("headers", (header["run"], header["digest"], header["purpose"]) == mine)
            c.that("signatures of headers", holds(key, header["signature"], "secureps-block", text))
        sealed = [run.ring.elements(slots) * run.ring.bytes for slots in run.slots]
        c.that("sizes", x["size"] == (sum(sealed) if update else 4 * run.group["size"]))
        if update:
            mine = (
                [envelope] * len(run.holders),
                len(a + b),
                len(run.holders),
                run.run["holders"],
                None,
            )
            theirs = (
                [len(unhex(y)) for y in x["envelopes"]],
                len(x["commitments"]),
                len(x["keys"]),
                x["committee"],
            )
            c.that("numbers of envelopes, commitments, keys", mine == (*theirs, x["charge"]))
            place = [x["release"][y] for y in ("party", "group", "version", "step")]
            expected = [client, x["id"]["group"], x["version"], x["step"]]
            c.that("releases", run.noise.makes(x["release"]) and place == expected)
            said = rows(run, "coordinator", "Examined", id=x["id"])
            c.that(
                "examinations",
                all((y["about"], y["flaw"]) == (receipt_digest(x).hex(), "") for y in said),
            )
    charged, c.at = [x["release"] for x in run.receipts if x["release"]], "the coordinator"
    c.that("releases", rows(run, "coordinator", "Release") == charged)


def check_model(c, run, version, x):
    """Compares values with the file and with what the shards prepared; they are the next base."""
    c.that("model's bytes", x.tobytes() == (run.folder / "models" / f"{version}.bin").read_bytes())
    run.x, run.blocks = x, [blake3(block.tobytes()) for block in parts_of(x, run.sizes)]
    run.base = model_digest(run.group["name"], version, run.blocks)
    for c.at, mine in by_owner(run, run.blocks).items():
        for party in ("coordinator", c.at):
            said = rows(run, party, "Prepared", shard=c.at, version=version)
            c.that("prepared blocks", [y["blocks"] for y in said] == [mine])


def by_owner(run, values):
    return {
        shard: [x for owner, x in zip(run.owners, values, strict=True) if owner == shard]
        for shard in run.owners
    }


def check_version_0(c, run):
    """Not checked: digests of states, whose form is in no document."""
    (x,) = [x for x in run.receipts if x["purpose"] == "founding"]
    check_model(c, run, 0, np.fromfile(run.folder / "models" / "0.bin", "<f4"))
    c.that("founding blocks", (x["version"], x["blocks"]) == (-1, run.blocks))


def check_version(c, run, version):
    """Not checked: digests of states, whose form is in no document; shares, from sealed seeds."""
    (cohort,) = [
        x["cohort"]
        for x in rows(run, "coordinator", "CohortClosed")
        if x["cohort"]["version"] == version
    ]
    members, number, name, z = cohort["members"], cohort["number"], run.group["name"], run.noise.z
    receipts, weights = [], [member["weight"] for member in members]
    for member in members:
        c.at = name_of(member["id"])
        (x,) = [x for x in run.receipts if x["id"] == member["id"]]
        c.that("members", all(member[y] == x[y] for y in ("version", "step", "update", "examples")))
        c.that("bases", (x["version"], x["base"], member["weight"]) == (version - 1, run.base, 1))
        receipts.append(x)
    count, c.at, least = len({x["id"]["client"] for x in members}), "", run.rule["rule"]["minimum"]
    most, about = run.plan["cipher"]["capacity"], opening_digest(run.id, cohort, receipts)
    c.that(
        "enough members", max(least, run.plan["privacy"]["honest"]) <= len(members) == count <= most
    )
    (opened,), numbers = rows(run, "coordinator", "CohortOpened", number=number), {}
    answers = [
        x
        for x in rows(run, "coordinator", "KeyShare", cohort=number)
        if x["holder"] in opened["holders"]
    ]
    c.that("answers", [x["about"] for x in answers] == [about] * run.plan["cipher"]["threshold"])
    for x in answers:
        answer = np.frombuffer(unhex(x["share"]), "<u4")
        numbers[run.holders.index(x["holder"])] = answer.astype(np.int64)
    corrections = [np.frombuffer(unhex(x["correction"]), "<u4").astype(np.int64) for x in receipts]
    key, u, totals, squares = key_sum(numbers, corrections, weights), [], [], []
    c.that("key sum", key.astype("<i4").tobytes().hex() == opened["key"])
    stages = {stage["name"]: stage for stage in run.rule["codec"]}
    options = (
        stages.get("support", {}).get("one_in", 1),
        "rotate" in stages,
        run.rule.get("feedback", False),
    )
    for block, (size, slots, base) in enumerate(zip(run.sizes, run.slots, run.blocks)):
        sealed = []
        for x in receipts:
            c.at = f"{x['id']['client']}.{x['id']['sequence']}.{block}.bin"
            sealed.append((run.folder / "blocks" / c.at).read_bytes())
            c.that("sealed blocks", blake3(sealed[-1]) == x["blocks"][block])
        total = run.ring.total(sealed, weights)
        count = run.ring.elements(slots)
        c.at = f"block {block}"
        public = run.ring.public(
            run.id, name, run.layout_digest, block * run.ring.elements(run.slots[0]), count
        )
        sums, near = run.ring.opened(total, key, weights, public, slots)
        c.that("residuals", near)
        mean = mean_of(sums, z, sum(weights), z * run.noise.step, sum(weights))
        u.append(Codec(name, block, version - 1, unhex(base), size, *options).decoded(mean))
        totals.append(blake3(total.tobytes()))
        squares.append(float(((sums - z * sum(weights)) ** 2).sum() * run.noise.step**2))
    for c.at, mine in by_owner(run, totals).items():
        said = (
            rows(run, "coordinator", "Held", shard=c.at, cohort=number),
            rows(run, c.at, "SumsMade", cohort=cohort),
        )
        c.that("sums", [[x["sums"] for x in y] for y in said] == [[mine], [mine]])
        c.that(
            "keys taken",
            [x["key"] for x in rows(run, c.at, "KeySumTaken", number=number)] == [opened["key"]],
        )
        (x,) = rows(run, "coordinator", "Prepared", shard=c.at, version=version)
        c.that(
            "squared norms",
            np.allclose(x["squares"], by_owner(run, squares)[c.at], rtol=1e-12, atol=0),
        )
    optimizer, c.at = run.rule["optimizer"], ""
    x, run.m, run.v = stepped(
        optimizer, run.x, np.concatenate(u), run.m, run.v, version - 1, run.plan["versions"]
    )
    check_model(c, run, version, x)


def check_audit(c, run):
    """Not checked: rows of clients and holders, and dates."""

    def agree(facts, record):
        return all(
            facts[x] == record[x]
            for x in facts.keys() & record.keys() - {"since", "update", "cohort"}
        )

    known = {name_of(x["id"]): (receipt_digest(x).hex(), x) for x in run.receipts}
    for cohort in (x["cohort"] for x in rows(run, "coordinator", "CohortClosed")):
        known[cohort["number"]] = (
            digest("secureps-cohort", run.id, canonical("Cohort", cohort)).hex(),
            cohort,
        )
    journal = {
        row[1]: (row[3], json.loads(row[4]), row[5]) for row in run.rows if row[0] == "coordinator"
    }
    for file in sorted((run.folder / "audit").iterdir()):
        party, texts, previous, c.at = file.stem, file.read_text().splitlines(), "", file.name
        begin, *entries, end = lines = list(map(json.loads, texts))
        for text, line in zip(texts, lines):
            c.at = f"{party} {line['line']} {line.get('number', '')}"
            c.that("lines in chains", line["previous"] == previous)
            previous = blake2b(text.encode()).hex()
        c.at, last = party, texts[-1].replace(end["signature"], "").encode()
        c.that(
            "signatures",
            holds(
                run.certificates[party]["public_key"], end["signature"], "secureps-audit-log", last
            ),
        )
        c.that(
            "beginnings",
            (begin["party"], begin["id"], begin["run"]) == (party, run.id.hex(), run.run),
        )
        mine = len(entries), entries[-1]["row"], entries[-1]["journal"]
        c.that("ends", (end["entries"], end["row"], end["journal"]) == mine)
        for number, entry in enumerate(entries, 1):
            facts, c.at = entry["facts"], f"{party} entry {number}"
            expected, record = known.get(
                facts.get("update", facts.get("cohort")), (run.run["roster"], {})
            )
            c.that(
                "entries", entry["number"] == number and facts.get("digest", expected) == expected
            )
            c.that("facts", agree(facts, record))
            if party == "coordinator":
                kind, x, chain = journal[entry["row"]]
                c.that("rows of entries", entry["journal"] == chain)
                c.that("facts", agree(facts, {"release": x} if kind == "Release" else x))
        for said in end["epsilon"]:
            c.at = f"{party}: {said['client']}"
            spent = rows(run, "coordinator", "Release", party=said["client"])
            mine = round(epsilon(spent, run.plan["privacy"]["delta"]), 3)
            c.that("epsilons", mine == said["epsilon"] <= run.plan["privacy"]["budget"])


def check_rounds(c, run):
    versions = rows(run, "coordinator", "VersionCommitted")
    cohorts = rows(run, "coordinator", "CohortClosed")
    expected = [
        {"group": run.group["name"], "version": version}
        for version in range(run.plan["versions"] + 1)
    ]
    told = [{"group": x["group"], "version": x["version"]} for x in versions]
    c.that("versions", told == expected)
    bound = [name_of(member["id"]) for x in cohorts for member in x["cohort"]["members"]]
    c.that("members are in one cohort", len(bound) == len(set(bound)))
    founders = [x["id"]["client"] for x in run.receipts if x["purpose"] == "founding"]
    c.that("founder", [x["client"] for x in rows(run, "coordinator", "FounderChosen")] == founders)
    for cohort in (x["cohort"] for x in cohorts):
        rounds = rows(
            run,
            "coordinator",
            "RoundOpened",
            version=cohort["version"] - 1,
            group=run.group["name"],
        )
        clients = {member["id"]["client"] for member in cohort["members"]}
        c.at = f"cohort {cohort['number']}"
        c.that("members were invited", clients <= {name for x in rounds for name in x["invited"]})
    files = [
        f"{x['id']['client']}.{x['id']['sequence']}.{block}.bin"
        for x in run.receipts
        if x["purpose"] == "update"
        for block in range(len(run.sizes))
    ]
    c.that(
        "files of blocks",
        sorted(x.name for x in (run.folder / "blocks").iterdir()) == sorted(files),
    )


def read_json(c, path):
    return json.loads(path.read_text())


def report(name, check, *arguments):
    """Prints what a check finds, and says how many disagreements."""
    c = Checks(name)
    if name.endswith(".json"):
        arguments = [c.guarded(read_json, *arguments)]
    if arguments != [None]:
        c.guarded(check, *arguments)
    counts = ", ".join(f"{number} {what}" for what, number in c.agreed.items() if number)
    if not counts:
        c.that("nothing agrees", False)
    print(f"{name}: {counts or 'nothing'} agree. {check.__doc__ or ''}", *c.wrong, sep="\n")
    return len(c.wrong)


def main(folder):
    np.seterr(all="ignore")
    wrong = 0
    for check in (
        check_seeds,
        check_polynomials,
        check_ciphertexts,
        check_shares,
        check_envelopes,
        check_messages,
        check_receipts,
        check_noise,
        check_ledgers,
        check_codecs,
        check_optimizers,
    ):
        file = check.__name__.removeprefix("check_") + ".json"
        wrong += report(file, check, folder / file)
    c = Checks("run")
    run = c.guarded(read_run, folder / "run")
    if run is None:
        return print(*c.wrong) or 1
    steps = [
        ("rounds", check_rounds),
        ("roster and rows", check_roster_and_rows),
        ("receipts", check_run_receipts),
        ("version 0", check_version_0),
        ("audit logs", check_audit),
    ]
    steps[4:4] = [
        (f"version {version}", check_version, version)
        for version in range(1, run.plan["versions"] + 1)
    ]
    for name, check, *version in steps:
        wrong += report(f"run, {name}", check, run, *version)
    print(
        f"{wrong} disagreements."
        if wrong
        else "Everything agrees but what is said not to be checked."
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)))
