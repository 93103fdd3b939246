"""The documentation: links, code blocks, and commands of all pages, written and generated."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from docs.generate import command_page
from docs.generate.__main__ import PAGES, ROOT, write_pages
from mainstay.recovery.plan_cli import run_plan
from mainstay.recovery.scenario_file import read_scenario
from mainstay.recovery.simulate.traces import read_changes

Commands = dict[tuple[str, ...], command_page.CommandReference]
EXAMPLES = ROOT / "docs" / "examples"
_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>[\w+-]*)[^\n]*\n(?P<body>.*?)^ *(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()]*\)[^()\s]*)?)(?:\s+\"[^\"]*\")?\)")
_PARSERS = {"json": json.loads, "toml": tomllib.loads, "python": lambda text: compile(text, "block", "exec")}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the pages, with the generated ones written from the code."""
    copy = tmp_path_factory.mktemp("pages")
    for file in [*ROOT.glob("*.md"), ROOT / "LICENSE"]:
        shutil.copy(file, copy)
    written = {name for name in PAGES if (ROOT / "docs" / name).exists()}
    skipped = shutil.ignore_patterns("__pycache__", "generate")
    shutil.copytree(ROOT / "docs", copy / "docs", ignore=skipped)
    for name in written:
        (copy / "docs" / name).unlink()
    write_pages(copy / "docs")
    return copy


def pages_of(tree: Path) -> list[Path]:
    return [*sorted(tree.glob("*.md")), *sorted((tree / "docs").rglob("*.md"))]


def written_pages() -> list[Path]:
    """README and the pages that are not generated."""
    generated = {ROOT / "docs" / name for name in PAGES}
    return [ROOT / "README.md", *(file for file in sorted((ROOT / "docs").rglob("*.md")) if file not in generated)]


def without_code(text: str) -> str:
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "`x`", _FENCE.sub("", text))


def slug(heading: str) -> str:
    """The anchor that mkdocs makes of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", heading)
    ascii_text = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_text).strip().lower())


@cache
def anchors(page: Path) -> frozenset[str]:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    seen: Counter[str] = Counter()
    found = set(re.findall(r"(?:id=\"|\{#)([\w-]+)", text))
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        name = slug(heading)
        found.add(f"{name}_{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return frozenset(found)


def broken_links(page: Path, root: Path) -> Iterator[str]:
    for target in _LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if file.is_dir():
            file /= "index.md" if (file / "index.md").exists() else "README.md"
        if not file.exists() or root.resolve() not in [file, *file.parents]:
            yield f"{page.relative_to(root)}: {target}: no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{page.relative_to(root)}: {target}: no such heading"


def test_every_link_and_anchor_resolves(tree: Path) -> None:
    assert [line for page in pages_of(tree) for line in broken_links(page, tree)] == []


def test_readme_links_only_to_files_of_the_repository() -> None:
    """Code hosts show the README without generated pages."""
    generated = {f"docs/{name}" for name in PAGES} | {"docs/benchmarks/", "docs/benchmarks"}
    targets = _LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert [target for target in targets if target.partition("#")[0] in generated] == []


def test_a_broken_link_and_a_missing_heading_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One two\n[a](#one-two) [b](#other) [c](page.md#one-two) [d](gone.md) `[e](gone.md)`\n")
    assert list(broken_links(page, tmp_path)) == ["page.md: #other: no such heading", "page.md: gone.md: no such file"]


def test_every_python_json_and_toml_block_parses(tree: Path) -> None:
    problems = []
    for page in pages_of(tree):
        for block in _FENCE.finditer(page.read_text(encoding="utf-8")):
            parse = _PARSERS.get(block["language"])
            try:
                if parse is not None:
                    parse(textwrap.dedent(block["body"]))
            except (SyntaxError, ValueError) as error:
                problems.append(f"{page.relative_to(tree)}: {error}: {block['body'][:60]!r}")
    assert problems == []


def command_lines(text: str) -> Iterator[str]:
    """The ``mainstay`` command lines in shell blocks and code spans."""
    for block in _FENCE.finditer(text):
        if block["language"] in {"sh", "bash", "shell", "console", "text", ""}:
            for line in block["body"].replace("\\\n", " ").split("\n"):
                for part in re.split(r"&&|\|\||[|;&]\s", re.sub(r"\s#\s.*", "", line)):
                    if found := re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ +)*(?:\S*/bin/)?(mainstay [a-z].*)", part.strip()):
                        yield found[1]
    for span in re.findall(r"`([^`]+)`", _FENCE.sub("", text)):
        if re.match(r"mainstay [a-z]", span):
            yield " ".join(span.split())


def wrong_use(line: str, commands: Commands) -> str | None:
    """Why a command line is wrong, or None."""
    words = shlex.split(re.sub(r"[\[\]…]", " ", line.replace("'", "")))[1:]
    names = next((tuple(words[:n]) for n in (3, 2, 1) if tuple(words[:n]) in commands), None)
    groups = {key[0] for key in commands if len(key) > 1}
    if names is None:
        subcommand = len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1])
        return None if words[0] in groups and not subcommand else f"no command {' '.join(words[:2])}"
    known = commands[names].flags | {"--help"}
    for word in words[len(names) :]:
        if names in {("run",), ("agent",)} and (word.endswith(".py") or word in {"--", "-m"}):
            break  # the rest belongs to the script
        option = word.partition("=")[0].rstrip(",.")
        if re.match(r"--?[a-z]", option) and option not in known:
            return f"{' '.join(names)} has no option {option}"
    return None


@pytest.fixture(scope="module")
def commands() -> Commands:
    return command_page.command_references()


def test_every_mainstay_command_exists(commands: Commands) -> None:
    problems = [
        f"{page.relative_to(ROOT)}: {line}: {why}"
        for page in written_pages()
        for line in command_lines(page.read_text(encoding="utf-8"))
        if (why := wrong_use(line, commands))
    ]
    assert problems == []


def test_descriptions_of_options_are_not_formats(commands: Commands) -> None:
    assert [words for words, found in commands.items() for option in found.options if "%(" in option.description] == []


def test_an_unknown_command_and_an_unknown_option_are_found(commands: Commands) -> None:
    assert wrong_use("mainstay frobnicate x", commands) == "no command frobnicate x"
    assert wrong_use("mainstay up --loud", commands) == "up has no option --loud"
    assert wrong_use("mainstay run --nnodes 2 train.py --loud", commands) is None


def test_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tree: Path) -> None:
    """What ``make docs`` builds, from the same pages in a folder of their own."""
    (tree / "mkdocs.yml").write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\nsite_dir: site\n")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"],
        cwd=tree,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert (tree / "site" / "reference" / "settings" / "index.html").is_file()


def test_the_navigation_and_gitignore_name_every_generated_page() -> None:
    navigation = json.dumps(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert [name for name in PAGES if f'"{name}"' not in navigation] == []
    assert [name for name in PAGES if not {f"docs/{name}", f"docs/{name.split('/')[0]}/"} & set(ignored)] == []


def test_the_benchmark_page_marks_every_unmet_claim_twice(tree: Path) -> None:
    claims = [claim for file in ROOT.glob("bench/results/*.json") for claim in json.loads(file.read_text())]
    sections = (tree / "docs" / "benchmarks" / "index.md").read_text(encoding="utf-8").split("\n## ")
    unmet = sum(claim["holds"] is False for claim in claims)
    assert sections[1].count("\n| [") == unmet
    assert sum(section.count("\n| ✗ **not met** |") for section in sections[2:]) == unmet
    assert sum(section.count("\n| ✓ met |") for section in sections[2:]) == sum(
        claim["holds"] is True for claim in claims
    )


def test_the_commented_scenario_loads_and_has_a_plan(tree: Path, tmp_path: Path) -> None:
    text = (tree / "docs" / "reference" / "scenario-files.md").read_text(encoding="utf-8")
    body = next(block["body"] for block in _FENCE.finditer(text) if block["language"] == "jsonc")
    file = tmp_path / "scenario.json"
    file.write_text("\n".join(line for line in body.split("\n") if not line.lstrip().startswith("//")))
    assert read_scenario(file) == read_scenario(EXAMPLES / "node-loss.json")
    assert run_plan(file, console=Console(file=io.StringIO())) == 0


def test_the_example_trace_loads() -> None:
    assert len(read_changes(EXAMPLES / "node-trace.csv")) == 8
