"""Random JSON schemas: nested objects at least four deep, bounded arrays, enum, const, anyOf, recursive
$ref, pattern. The same seed gives the same schema.

Whatever a schema leaves open is bounded (strings by maxLength or pattern, integers by their range, arrays
by maxItems), so that a small model that would go on for ever comes to an end too. What recurses may end at
each level and is the last property, so that most of it does.
"""

import random

PATTERNS = [r"^[a-z]{1,8}$", r"^[A-Z]{2}-[0-9]{3}$", r"^(red|green|blue)$", r"^[0-9]{4}-[0-9]{2}$", r"^#[0-9a-f]{6}$"]
WORDS = ["name", "city", "color", "count", "state", "kind", "owner", "label", "price", "level", "group", "score"]
LEAST_DEPTH = 4
MOST_NODES = 14


class Generator:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.nodes = 0
        self.definitions = {}

    def schema(self):
        root = self.object(LEAST_DEPTH)
        if self.definitions:
            root["$defs"] = self.definitions
        return root

    # `depth`: objects that must still follow below, along one property at least.
    def object(self, depth):
        self.nodes += 1
        names = self.rng.sample(WORDS, self.rng.randint(1, 3))
        properties = {name: self.any() for name in names}
        if depth > 1:
            properties["inner"] = self.nested(depth - 1)
        elif self.rng.random() < 0.4:
            properties["chain"] = self.chain()
        required = [name for name in properties if name == "inner" or self.rng.random() < 0.7]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def nested(self, depth):
        return {"type": "array", "items": self.object(depth), "minItems": 1, "maxItems": 1} \
            if self.rng.random() < 0.2 else self.object(depth)

    def any(self):
        self.nodes += 1
        if self.nodes > MOST_NODES:
            return self.leaf()
        kind = self.rng.random()
        if kind < 0.12:
            return self.object(1)
        if kind < 0.27:
            least = self.rng.randint(0, 2)
            return {"type": "array", "items": self.leaf(), "minItems": least, "maxItems": least + self.rng.randint(1, 2)}
        if kind < 0.42:
            return {"anyOf": [self.leaf() for _ in range(self.rng.randint(2, 3))]}
        return self.leaf()

    def leaf(self):
        kind = self.rng.randrange(7)
        if kind == 0:
            return {"type": "string", "minLength": self.rng.randint(0, 2), "maxLength": self.rng.randint(3, 12)}
        if kind == 1:
            return {"type": "string", "pattern": self.rng.choice(PATTERNS)}
        if kind == 2:
            values = ["a", "be", "sea \"d\"", 7, -1, True, None]
            return {"enum": self.rng.sample(values, self.rng.randint(1, 4))}
        if kind == 3:
            low = self.rng.randint(-1000, 1000)
            return {"type": "integer", "minimum": low, "maximum": low + self.rng.randint(0, 5000)}
        if kind == 4:
            return {"const": self.rng.choice(["fixed", 3, False])}
        if kind == 5:
            return {"type": self.rng.choice(["boolean", "null"])}
        return {"enum": self.rng.sample(WORDS, self.rng.randint(2, 4))}

    def chain(self):
        """A list or a tree that refers to itself."""
        name = f"node{len(self.definitions)}"
        reference = {"$ref": f"#/$defs/{name}"}
        again = {"anyOf": [{"type": "null"}, reference]} if self.rng.random() < 0.6 \
            else {"type": "array", "items": reference, "maxItems": 1}
        self.definitions[name] = {
            "type": "object", "properties": {"v": self.leaf(), "next": again},
            "required": ["v", "next"], "additionalProperties": False}
        return reference


def random_schema(seed):
    return Generator(seed).schema()


def depth(value):
    """Of the objects and arrays of an output or a schema's properties."""
    if isinstance(value, dict):
        return 1 + max((depth(inner) for inner in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth(inner) for inner in value), default=0)
    return 0
