#!/usr/bin/env python3
"""Finds circles of files: modules of one crate that use each other, directly or by way of others.

    scripts/check_cycles.py            fails on a circle that JUSTIFIED does not list, and on an entry of it that is void
    scripts/check_cycles.py --edges    also prints by which names the modules of each circle use each other

A reader of modules without circles can begin with those that use nothing, and never needs a file that comes later.

A module uses another one if its code names something that the other one defines: names are followed through
re-exports, so `use super::Thing` is a use of the sibling where `Thing` lies, and a `pub use` is not a use by the
module that only passes a name on. Code of tests does not count. Calls of methods are not seen, because they name no
module: a type may have its methods in several files.

Each run first checks a small crate made of circles and of what looks like one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Tests and campaigns are read from the top, as programs are.
GROUPS = ("crates", "lab")

# Circles that stay: the crate, its modules in order of their names, and why.
JUSTIFIED: dict[tuple[str, ...], str] = {
    ("crates/native", "filesystem", "filesystem::btrfs", "filesystem::ext4"):
        "a filesystem is one of the two, and each of them gives its settings in the common form",
    ("lab/persistence", "compare", "compare::run"):
        "the entry says what a comparison is made with and what it costs, and the run is its one step",
}

Module = tuple[str, ...]
DEFINITION = r"\b(?:fn|struct|enum|union|trait|type|const|static|mod)\s+(?:mut\s+)?(?:r#)?"


def without_text(source: str) -> str:
    """The source with comments, strings and characters blanked; lines stay."""
    pattern = re.compile(
        r"//[^\n]*|/\*.*?\*/|b?r(#*)\".*?\"\1|b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\(?:x..|u\{[^}]*\}|.)|[^\\'])'",
        re.DOTALL,
    )
    code = pattern.sub(lambda match: "\n" * match[0].count("\n") if match[0][0] == "/" else '""', source)
    # The path says who may see an item, and is no use of that module.
    return re.sub(r"\bpub\(in [\w:]+\)", "pub", code)


def end_of_item(code: str, start: int) -> int:
    """Where the item that begins at `start` ends: after its `;`, or the brace that closes its body."""
    depth = 0
    for position in range(start, len(code)):
        character = code[position]
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0 and character == "}":
                return position + 1
        elif character == ";" and depth == 0:
            return position + 1
    return len(code)


def split_tests(code: str) -> tuple[str, set[str]]:
    """The code without items under `#[cfg(test)]`, and the names of modules among these that are files."""
    tests = set()
    while found := re.search(r"#\[cfg\((?:all\()?test\b[^\]]*\]", code):
        start = found.end()
        while attribute := re.match(r"\s*#\[", code[start:]):
            start = code.index("]", start + attribute.end()) + 1
        end = end_of_item(code, start)
        item = code[start:end]
        if re.match(r"\s*(?:pub(?:\([^)]*\))?\s+)?use\b", item):
            end = code.index(";", start) + 1
        if module := re.match(r"\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", item):
            tests.add(module[1])
        code = code[: found.start()] + code[end:]
    return code, tests


def without_inner_modules(code: str) -> str:
    """The code with paths of modules that are written inline spelled as their file would spell them."""
    for inline in reversed(list(re.finditer(r"\bmod\s+\w+\s*\{", code))):
        end = end_of_item(code, inline.start())
        inner = re.sub(r"(?<![\w:])super::", "self::", code[inline.end() : end])
        code = code[: inline.end()] + inner.replace("self::super::", "super::") + code[end:]
    return code


def use_tree(prefix: str, body: str) -> list[tuple[list[str], str]]:
    """What a `use` names: each path, and the name that it gets here ("*" for all)."""
    items, current, depth = [], "", 0
    for character in body + ",":
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            items.append(current.strip())
            current = ""
        else:
            current += character
    found = []
    for item in filter(None, items):
        if "{" in item:
            brace = item.index("{")
            found += use_tree(prefix + item[:brace], item[brace + 1 : item.rindex("}")])
            continue
        path, _, name = (prefix + item).partition(" as ")
        segments = [segment.strip() for segment in path.split("::") if segment.strip()]
        if len(segments) > 1 and segments[-1] == "self":
            segments.pop()
        found.append((segments, name.strip() or segments[-1]))
    return found


class Crate:
    """The modules of a crate: their code, what they import, and what of each other they use."""

    def __init__(self, files: dict[Module, str]):
        tests = set()
        self.code: dict[Module, str] = {}
        for module, source in files.items():
            code, names = split_tests(without_text(source))
            self.code[module] = without_inner_modules(code)
            tests |= {module + (name,) for name in names}
        for test in tests:
            for module in [module for module in self.code if module[: len(test)] == test]:
                del self.code[module]
        # For each module the names that it imports, with the path that each stands for.
        self.imports: dict[Module, list[tuple[list[str], str, bool]]] = {}
        self.body: dict[Module, str] = {}
        for module, code in self.code.items():
            use = re.compile(r"(\bpub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);")
            self.imports[module] = [
                (path, name, bool(match[1])) for match in use.finditer(code) for path, name in use_tree("", match[2])
            ]
            self.body[module] = re.sub(r"\bmod\s+\w+\s*;", "", use.sub("", code))

    def defines(self, module: Module, name: str) -> bool:
        return re.search(DEFINITION + re.escape(name) + r"\b", self.body[module]) is not None

    def knows(self, module: Module, name: str) -> bool:
        return self.defines(module, name) or any(name == imported for _, imported, _ in self.imports[module])

    def owner(self, module: Module, path: list[str], depth: int = 0) -> Module | None:
        """The module that defines what `path` names in `module`; none for another crate's."""
        if not path or depth > 20:
            return None
        if path[0] == "crate":
            here, rest = (), path[1:]
        elif path[0] == "self":
            here, rest = module, path[1:]
        elif path[0] == "super":
            here, rest = module, list(path)
            while rest and rest[0] == "super":
                here, rest = here[:-1], rest[1:]
        elif module + (path[0],) in self.code or depth and self.knows(module, path[0]):
            here, rest = module, path
        else:
            return None
        while rest:
            if here + (rest[0],) in self.code:
                here, rest = here + (rest[0],), rest[1:]
                continue
            if here in self.code and not self.defines(here, rest[0]):
                for target, name, _ in self.imports[here]:
                    if name == rest[0] and target != rest:
                        return self.owner(here, target + rest[1:], depth + 1)
                for target, name, _ in self.imports[here]:
                    if name != "*":
                        continue
                    source = self.owner(here, target[:-1], depth + 1)
                    if source and source != here and self.defines(source, rest[0]):
                        return source
            break
        return here if here in self.code else None

    def uses(self) -> dict[Module, dict[Module, set[str]]]:
        """For each module the modules that it uses, with the names."""
        found: dict[Module, dict[Module, set[str]]] = {module: defaultdict(set) for module in self.code}
        for module, body in self.body.items():
            for path, name, is_passed_on in self.imports[module]:
                if is_passed_on and not re.search(r"(?<!::)\b" + re.escape(name) + r"\b", body.replace("*", "")):
                    continue
                self.note(found, module, path[:-1] if name == "*" else path)
            for path in re.findall(r"(?<![\w:])((?:\w+)(?:::\w+)+)", body):
                self.note(found, module, path.split("::"))
        return found

    def note(self, found: dict[Module, dict[Module, set[str]]], module: Module, path: list[str]) -> None:
        owner = self.owner(module, path)
        if owner is not None and owner != module:
            found[module][owner].add("::".join(path))


def circles(graph: dict[Module, dict[Module, set[str]]]) -> list[list[Module]]:
    """The strongly connected components of more than one module (Tarjan)."""
    index: dict[Module, int] = {}
    low: dict[Module, int] = {}
    stack: list[Module] = []
    found = []

    def visit(module: Module) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for used in graph[module]:
            if used not in index:
                visit(used)
                low[module] = min(low[module], low[used])
            elif used in stack:
                low[module] = min(low[module], index[used])
        if low[module] == index[module]:
            component = []
            while not component or component[-1] != module:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def spelled(module: Module) -> str:
    return "::".join(module) or "lib"


def crates() -> dict[str, Crate]:
    """The crates by their folders, of the files under version control or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *(f"{group}/*.rs" for group in GROUPS)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout
    files: dict[str, dict[Module, str]] = defaultdict(dict)
    for name in filter(None, listed.split("\0")):
        group, crate, *rest = name.split("/")
        # One that was removed is still listed until it is committed.
        if rest[0] != "src" or not (ROOT / name).is_file():
            continue
        module = [*rest[1:-1], rest[-1].removesuffix(".rs")]
        if module[-1] == "mod" or module in (["lib"], ["main"]):
            module.pop()
        # A program beside a library names it as another crate.
        if rest[1:] == ["main.rs"] and (ROOT / group / crate / "src/lib.rs").is_file():
            continue
        files[f"{group}/{crate}"][tuple(module)] = (ROOT / name).read_text()
    return {crate: Crate(sources) for crate, sources in sorted(files.items())}


def check_itself() -> None:
    crate = Crate({
        (): "mod a; mod b; mod c; mod d; mod e; #[cfg(test)] mod t; pub use a::Thing;",
        # `a` and `b` use each other; `c` uses `a` through the root, which only passes its name on.
        ("a",): "use crate::b::{self, Part}; pub struct Thing(Part); // crate::c::X",
        ("b",): 'pub struct Part; fn f() { super::a::g("crate::c::X") } #[cfg(test)] mod tests { use crate::c::X; }',
        ("c",): "use crate::Thing; pub struct X;",
        # A parent and its child, by a path that begins with the child's name.
        ("d",): "mod inner; pub struct Whole; fn f() { inner::make() }",
        ("d", "inner"): "use super::Whole; pub fn make() {}",
        ("e",): "use super::d::Whole;",
        ("t",): "use crate::e::Y;",
    })
    if circles(crate.uses()) != [[("a",), ("b",)], [("d",), ("d", "inner")]]:
        sys.exit(f"check_cycles.py does not find what it looks for: {circles(crate.uses())}")


def main() -> int:
    check_itself()
    failed = False
    seen = set()
    for name, crate in crates().items():
        graph = crate.uses()
        for circle in circles(graph):
            key = (name, *map(spelled, circle))
            seen.add(key)
            if key not in JUSTIFIED:
                print(f"{name}: a circle of files: {', '.join(map(spelled, circle))}", file=sys.stderr)
                failed = True
            if "--edges" in sys.argv[1:]:
                for module in circle:
                    for used in sorted(set(graph[module]) & set(circle)):
                        names = ", ".join(sorted(graph[module][used]))
                        print(f"    {spelled(module)} -> {spelled(used)}: {names}")
    for key in JUSTIFIED:
        if key not in seen:
            print(f"check_cycles.py justifies a circle that is not there: {', '.join(key)}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
