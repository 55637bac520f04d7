#!/usr/bin/env python3
"""Writes docs/python-reference.md from the docstrings of the package `gradwire`:

    bindings/reference.py          writes the page
    bindings/reference.py --check  ends with 1 if the page is not what this script writes

It reads the sources as text and imports nothing, so it runs without a build.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "bindings/python/python/gradwire"
PAGE = ROOT / "docs/python-reference.md"
AGAIN = """`bindings/reference.py` writes this page from the docstrings of `bindings/python/python/gradwire`. Change those, and run it again; a test fails if the page is stale.
"""
# Modules in the order of the page, with the names to show; None: all public ones.
MODULES = {
    "gradwire": None,
    "gradwire.torch": None,
    "gradwire.tensorflow": None,
    "gradwire.tensorflow.keras": ["load_model"],
    "gradwire.tensorflow.keras.callbacks": [
        "BroadcastGlobalVariablesCallback",
        "LearningRateScheduleCallback",
        "LearningRateWarmupCallback",
        "MetricAverageCallback",
    ],
    "gradwire.jax": ["Tree", "push_pull"],
}


def parsed(path):
    return ast.parse(path.read_text())


def names_of(path):
    """`__all__` of a module, with that of a module beside it that it adds."""
    names = []
    for node in parsed(path).body:
        target = getattr(node, "target", None) or getattr(node, "targets", [None])[0]
        if not isinstance(node, (ast.Assign, ast.AugAssign)) or getattr(target, "id", "") != "__all__":
            continue
        if isinstance(node.value, ast.Attribute):
            names += names_of(path.with_name(f"{node.value.value.id}.py"))
        else:
            names += ast.literal_eval(node.value)
    return names


def sources(directory):
    """Functions and classes of all files of a package, by name; stubs of compiled code last."""
    found = {}
    for path in [*sorted(directory.glob("*.py")), *sorted(directory.glob("*.pyi"))]:
        for node in parsed(path).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(node)
            for name, method in bound(node) if isinstance(node, ast.Assign) else []:
                found.setdefault(name, []).append(method)
    return found


def bound(assignment):
    """Names that a module binds to methods of the process's client, with these methods."""
    client = next(node for node in parsed(PACKAGE / "_process.py").body if isinstance(node, ast.ClassDef))
    methods = members([client])
    pair = (assignment.targets[0], assignment.value)
    targets, values = (side.elts if isinstance(side, ast.Tuple) else [side] for side in pair)
    for target, value in zip(targets, values):
        if isinstance(value, ast.Attribute) and ast.unparse(value.value) == "process_client":
            yield target.id, methods[value.attr]


def text_of(node):
    """A docstring as Markdown: indented examples become blocks."""
    text = ast.get_docstring(node) or ""
    out, block = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("    ") or (block and not line):
            block.append(line[4:])
            continue
        if block:
            while block and not block[-1]:
                block.pop()
            out += ["```python", *block, "```", ""]
            block = []
        out.append(line)
    if block:
        out += ["```python", *[line for line in block if line], "```"]
    return "\n".join(out).rstrip()


def annotation(node):
    """A type as readers write it."""
    text = ast.unparse(node)
    return re.sub(r"np\.ndarray\[Any, Any\]", "np.ndarray", text.replace("'", ""))


def signature(node, owner=""):
    spec = node.args
    parts, plain = [], [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(plain) - len(spec.defaults)) + spec.defaults
    for at, (argument, default) in enumerate(zip(plain, defaults)):
        if at == 0 and argument.arg in ("self", "cls"):
            continue
        parts.append(one(argument, default))
    if spec.vararg:
        parts.append("*" + one(spec.vararg, None))
    elif spec.kwonlyargs:
        parts.append("*")
    parts += [one(argument, default) for argument, default in zip(spec.kwonlyargs, spec.kw_defaults)]
    if spec.kwarg:
        parts.append("**" + one(spec.kwarg, None))
    returns = f" -> {annotation(node.returns)}" if node.returns and node.name != "__init__" else ""
    name = {"__init__": owner}.get(node.name, node.name)
    return f"{name}({', '.join(parts)}){returns}"


def one(argument, default):
    text = argument.arg
    if argument.annotation is not None:
        text += f": {annotation(argument.annotation)}"
    if default is not None:
        text += f"{' = ' if argument.annotation is not None else '='}{ast.unparse(default)}"
    return text


def fields(node):
    """The constructor of a dataclass, from its fields."""
    is_data = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    listed = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    if not is_data:
        return None
    parts = [
        f"{item.target.id}: {annotation(item.annotation)}" + (f" = {ast.unparse(item.value)}" if item.value else "")
        for item in listed
    ]
    return f"{node.name}({', '.join(parts)})"


def members(nodes):
    """Public methods of a class and of the compiled class below it, each once."""
    seen = {}
    for node in nodes:
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and (not item.name.startswith("_") or item.name == "__init__"):
                if not any(ast.unparse(decorator).endswith(".setter") for decorator in item.decorator_list):
                    seen.setdefault(item.name, item)
    return seen


def of_class(name, nodes):
    node, methods = nodes[0], members(nodes)
    start = methods.pop("__init__", None)
    # What other functions call, with what only they have, is no constructor for readers.
    if start and (start not in node.body or "_native" in signature(start, name)):
        start = None
    head = signature(start, name) if start else fields(node)
    bases = [ast.unparse(base).split(".")[-1] for base in node.bases if "_native" not in ast.unparse(base)]
    lines = [f"### {name}", "", "```python", f"class {head or name}" + (f"    # is also: {', '.join(bases)}" if bases else ""), "```", ""]
    lines += [text_of(node), ""] if ast.get_docstring(node) else []
    for method in sorted(methods.values(), key=lambda item: item.name):
        is_property = any(ast.unparse(decorator) == "property" for decorator in method.decorator_list)
        shown = f"{method.name}: {annotation(method.returns)}" if is_property and method.returns else signature(method, name)
        lines += [f"**`{name}.{shown}`**", "", text_of(method), ""]
    return lines


def python_page():
    lines = ["# Python reference", "", AGAIN]
    lines += ["[Python](python.md), [torch](torch.md), [TensorFlow](tensorflow.md) and [Embedding tables](tables.md) explain how to use these names.", ""]
    everything = sources(PACKAGE)
    for module, shown in MODULES.items():
        place = PACKAGE / module.removeprefix("gradwire").strip(".").replace(".", "/")
        directory = place if place.is_dir() else PACKAGE
        found = everything if module == "gradwire" else sources(place) if place.is_dir() else {}
        if not place.is_dir():
            for node in parsed(place.with_suffix(".py")).body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    found[node.name] = [node]
        shown = shown or names_of(directory / "__init__.py")
        nodes = [(name, found[name]) for name in shown if name in found]
        lines += [f"## {module}", ""]
        for name, of_name in sorted(nodes, key=lambda item: (isinstance(item[1][0], ast.ClassDef), item[0].lower())):
            if isinstance(of_name[0], ast.ClassDef):
                lines += of_class(name, of_name)
            else:
                lines += [f"### {name}", "", "```python", signature(of_name[0]), "```", "", text_of(of_name[0]), ""]
    return tidied(lines)


def tidied(lines):
    text = "\n".join(lines)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def main():
    text = python_page()
    if PAGE.exists() and PAGE.read_text() == text:
        return
    if "--check" in sys.argv:
        sys.exit(f"{PAGE.relative_to(ROOT)}: stale; run bindings/reference.py")
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
