"""Grammars that no server should have to compile: exponential, recursive, huge, malformed. Each is
(name, fields of the request); each must get a 400 that names the field."""

import json


def schema(value):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def text_schema(value):
    return {"structured_outputs": {"json": value}}


def regex(value):
    return {"structured_outputs": {"regex": value}}


def ebnf(value):
    return {"structured_outputs": {"grammar": value}}


def choice(value):
    return {"structured_outputs": {"choice": value}}


def nested(levels):
    value = {"type": "string"}
    for _ in range(levels):
        value = {"type": "object", "properties": {"a": value}, "required": ["a"]}
    return value


def any_of_bomb(levels):
    value = {"type": "string"}
    for i in range(levels):
        value = {"anyOf": [value, {"type": "object", "properties": {f"k{i}": value}}]}
    return value


def properties(count, **more):
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}, **more}


def doubling(levels, leaf):
    rules = ["root ::= e%d" % levels]
    rules += [f"e{i} ::= e{i - 1} e{i - 1} | e{i - 1} \"c\" | e{i - 1}" for i in range(levels, 0, -1)]
    return "\n".join(rules + [f"e0 ::= {leaf}"])


def rules(count):
    return "\n".join(["root ::= r0", *[f'r{i} ::= "a" r{i + 1} | "b" r{i + 1} r{i + 1} | [a-z]+ r{i + 1}'
                                       for i in range(count)], f'r{count} ::= "x"'])


def words(count, width=8):
    return " | ".join('"%0*x"' % (width, i * 2654435761 % 2**32) for i in range(count))


LIST = [
    # What never ends.
    ("ambiguous sentence", ebnf('root ::= s\ns ::= s s s | s s | [a-z ]+ | ""')),
    ("ambiguous pair", ebnf('root ::= s\ns ::= s s | [a-z]* | ""')),
    ("ambiguous triple", ebnf('root ::= t\nt ::= t t t t | [a-z]+ [a-z]+ | ""')),
    ("nullable tower", ebnf("\n".join(["root ::= n9", *[f'n{i} ::= n{i - 1} n{i - 1} n{i - 1} | ""'
                                                         for i in range(9, 0, -1)], 'n0 ::= [a-z ]* | ""']))),
    ("optional letters", regex("a?" * 2000 + "a" * 2000)),
    ("optional words", regex("(ab)?" * 4000)),
    ("stars", regex(".*" * 500)),
    ("more stars", regex("[a-z]*" * 2000)),
    ("stars and letters", regex(".*a" * 16000)),
    ("star of stars", regex("((([a-z]*)*[0-9]*)*" * 200 + ")" * 200)),
    ("repetition of repetitions", regex("((([a-z]{1,100}){1,100}){1,100}){1,100}")),
    ("bounded repetition thrice", regex("((a|b|ab){1,500}){1,500}" * 20)),
    ("anyOf within anyOf", text_schema(json.dumps(any_of_bomb(8)))),
    ("many optional properties", schema(properties(1000))),
    ("three thousand properties", text_schema(json.dumps(properties(1500, required=[f"p{i}" for i in range(1500)])))),
    ("optional properties and others", schema(properties(600, additionalProperties=True))),
    ("a rule for each rule", ebnf(rules(600))),
    ("doubling rules", ebnf(doubling(300, "[a-z]*"))),
    # What means nothing, or itself.
    ("itself", schema({"$ref": "#"})),
    ("a ring of references", schema({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                                     "$ref": "#/$defs/a"})),
    ("a list of itself", ebnf("root ::= root")),
    ("rules in a ring", ebnf("root ::= a\na ::= b\nb ::= a")),
    ("an object of itself", schema({"$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}},
                                                    "required": ["a"], "not": {}}}, "$ref": "#/$defs/a"})),
    ("a reference to nowhere", schema({"$ref": "#/$defs/nothing"})),
    ("a reference elsewhere", schema({"$ref": "https://example.com/schema.json"})),
    ("an unknown rule", ebnf("root ::= nothing")),
    ("no root", ebnf('start ::= "a"')),
    ("no such type", schema({"type": "strange"})),
    ("empty enum", schema({"enum": []})),
    ("least above most", schema({"type": "integer", "minimum": 5, "maximum": 3})),
    ("longer than its length", schema({"type": "string", "minLength": 5, "maxLength": 3})),
    ("more items than items", schema({"type": "array", "minItems": 5, "maxItems": 3})),
    # What is huge.
    ("deep regex", regex("(" * 20000 + "a" + ")" * 20000)),
    ("deep grammar", ebnf("root ::= " + "(" * 20000 + '"a"' + ")" * 20000)),
    ("deep schema", text_schema(json.dumps(nested(200)))),
    ("deep array", text_schema("[" * 30000 + "]" * 30000)),
    ("long regex", regex("a" * 70_000)),
    ("megabytes of regex", regex("a" * 5_000_000)),  # more than gRPC takes unless told to
    ("long grammar", ebnf("root ::= " + words(20_000))),
    ("long schema", schema({"enum": [f"value {i}" for i in range(10_000)]})),
    ("many choices", choice([f"choice {i}" for i in range(5000)])),
    ("long choices", choice(["x" * 7000 + str(i) for i in range(10)])),
    ("countless repetition", regex("a{1,99999999999}")),
    # What is broken.
    ("open parenthesis", regex("(((a")),
    ("open class", regex("[a-")),
    ("backwards range", regex("[z-a]")),
    ("open string", ebnf('root ::= "a')),
    ("half a schema", text_schema('{"type": "obj')),
    ("a key twice", text_schema('{"type": "object", "type": "array"}')),
    ("a schema of numbers", text_schema("3")),
    ("no regex", regex("")),
    ("a zero byte", regex("a\0b")),
    ("an empty choice", choice(["a", ""])),
    ("no choice", choice([])),
    ("what would be ignored", schema({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})),
    ("what would be ignored deep down", schema(
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, {"not": {"type": "null"}}]}}})),
]
