"""The fenced blocks of the pages, and who runs each.

A block's language says what it is: sh, console (`$ command`, then what it answers), lua, sql, json, yaml; `text` is no code. Who runs it stands in a comment
just before it, or, for all blocks of some languages on a page, anywhere on it:

    <!-- run by: tests/e2e/test_x.py::test_y -->          <!-- sh, lua run by: … -->
    <!-- not run: why it cannot be -->

Blocks between `<!-- from: … -->` and `<!-- end -->` are made by the program (tests/lint/docs.lua). What has no comment is run by tests/e2e/test_docs.py itself.
"""
import re
from dataclasses import dataclass

from support.procs import ROOT

PAGES = ["README.md", "README.pt-BR.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
LANGUAGES = {"sh", "console", "lua", "sql", "json", "yaml"}

# What tests/e2e/test_docs.py runs without being named.
HERE = {("README.md", "sh"), ("README.md", "console"), ("README.md", "lua"), ("docs/configuration.md", "lua"), ("docs/ledger.md", "sql"), ("docs/manifest.md", "lua"),
        ("docs/schedules.md", "lua"), ("docs/tasks.md", "lua"), ("docs/tasks.md", "sql"), ("docs/tasks.md", "json"),
        ("README.pt-BR.md", "sh"), ("README.pt-BR.md", "console"), ("README.pt-BR.md", "lua")}


@dataclass
class Snippet:
    page: str
    line: int
    language: str
    text: str
    run_by: str = None
    not_run: str = None

    def __str__(self):
        return f"{self.page}:{self.line} ({self.language})"


def of_page(page):
    text = (ROOT / page).read_text()
    made = [m.span() for m in re.finditer(r"<!-- from:.*?<!-- end -->", text, re.S)]
    whole = {language: by for names, by in re.findall(r"<!-- ([a-z, ]+) run by: (\S+) -->", text) for language in names.split(", ")}
    for m in re.finditer(r"(?:^<!-- (run by|not run): ([^\n]*) -->\n)?^```([^\n]*)\n(.*?)^```$", text, re.M | re.S):
        if any(a <= m.start() < b for a, b in made) or m.group(3) == "text":
            continue
        found = Snippet(page, text.count("\n", 0, m.start(3)) + 1, m.group(3), m.group(4))
        found.run_by = m.group(2) if m.group(1) == "run by" else whole.get(m.group(3)) if not m.group(1) else None
        found.not_run = m.group(2) if m.group(1) == "not run" else None
        yield found


def every():
    return [snippet for page in PAGES if (ROOT / page).exists() for snippet in of_page(page)]


def faults():
    """Blocks of an unknown language, and those that nobody runs; for tests/lint/run, too."""
    for snippet in every():
        path, _, name = (snippet.run_by or "").partition("::")
        if snippet.language not in LANGUAGES:
            yield f"{snippet}: say what it is: {', '.join(sorted(LANGUAGES))}, or text where it is no code"
        elif snippet.run_by and not ((ROOT / path).exists() and (not name or f"\ndef {name}(" in (ROOT / path).read_text())):
            yield f"{snippet}: there is no {snippet.run_by}"
        elif not snippet.run_by and not snippet.not_run and (snippet.page, snippet.language) not in HERE:
            yield f"{snippet}: nobody runs it: say who does, or why nobody can (tests/support/snippets.py)"


def one(page, containing):
    found, = (s for s in of_page(page) if containing in s.text)
    return found


def commands(snippet):
    """The commands of a console block, without what they answer."""
    return [line[2:] for line in snippet.text.splitlines() if line.startswith("$ ")]


if __name__ == "__main__":
    print("\n".join(faults()))
