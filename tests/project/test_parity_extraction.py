"""The readers of Flink's documents, on documents of the same forms about something else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.parity import extract as extraction
from tools.parity import names as parity_names
from tools.parity.documents import (
    Incomplete,
    Named,
    Section,
    javadoc,
    operations,
    python_source,
    sphinx,
    summary,
)
from tools.parity.extract import Document

MODULE = '''\
# A licence
# of two lines
from typing import Optional
__all__ = [
'Kettle']
[docs]class Kettle(Vessel):
"""
**Boiling and Pouring**
>>> kettle = Kettle("tin")
"""
MAX_LITRES = 2 * 3
def __init__(self,
material=None,
j_kettle=None):
"""
:param material: What it is made of.
"""
if material is None:
raise ValueError("material must not be None")
def get_litres(self) -> Optional[int]:
"""
"""
'''

PAGE = """\
kitchen package¶

class kitchen.Kettle(material=None, j_kettle=None)[source]¶

Bases: object

Boiling and Pouring

It boils.

LARGE:

  • setLitres(6)

static of(material, *lids)[source]¶

Makes one.

Example:

>>> Kettle.of(
...     "tin")
Parameters

material \N{EN DASH} What it is made of.
  • lids \N{EN DASH} Any number.

MAX_LITRES = 6¶
class kitchen.Colour[source]¶

Bases: object

RED = 0¶
Navigation

"""

JAVADOC = """\
Class Kettle

  • All Implemented Interfaces:
    Boiler, Vessel

    public abstract class Kettle
    extends Object

    Kettle File

    • Field Detail

      • LID_PREFIX

        public static final\N{NO-BREAK SPACE}String LID_PREFIX
        The prefix.
    • Constructor Detail

      • Kettle

        protected\N{NO-BREAK SPACE}Kettle(Metal\N{NO-BREAK SPACE}metal,
                                         @Nullable
                                         Lid\N{NO-BREAK SPACE}spareLid)
        Makes one.
    • Method Detail

      • boil

        public\N{NO-BREAK SPACE}Water\N{NO-BREAK SPACE}boil(long\N{NO-BREAK SPACE}seconds)
                      throws SteamException
        Boils.
        Throws:
        SteamException - If it is too hot.
"""

SUMMARY = """\
Checkpoint#
CheckpointConfig#
What is chosen.
Gets the heat. |
|
Sets the heat. |
|
|
Only if
Only if |
|
CheckpointStorage#
Raw Water
Kept in tins. |"""
METHODS = {
    "get_heat": "Gets .*",
    "set_heat": "Sets .*",
    "set_steam": "Only if",
    "set_old_steam": "Only if",
    "Tin": "Kept .*",
}

OPERATING = """\
Boiling #

new Kettle(6);

CheckpointConfig config = env.getCheckpointConfig();
config.setLid(
  new Lid("tin"));

The lids:

/kitchen
    /{kettle}
        + --lids/
        + --cup-1/
        + --cup-2/

state.kettle.lid: tin

$ bin/boil -s :kettle

Back to top
"""


def ids(found: list[Named]) -> list[str]:
    return [item.id for item in found]


def test_a_python_module() -> None:
    found, sections = python_source(MODULE)
    assert ids(found) == [
        "Kettle",
        'example: kettle = Kettle("tin")',
        "Kettle.MAX_LITRES",
        "Kettle()",
        "Kettle(material)",
        "Kettle(j_kettle)",
        "Kettle() raises ValueError",
        "Kettle.get_litres",
    ]
    assert found[2].value == 6
    assert found[3].signature == "Kettle(material=None, j_kettle=None)"
    assert found[-1].signature == "get_litres() -> Optional[int]"
    assert sections == [Section("Kettle", "Boiling and Pouring")]


def test_a_page_of_sphinx() -> None:
    found, sections = sphinx(PAGE)
    assert {item.id: item.kind for item in found} == {
        "Kettle": "class",
        "Kettle()": "constructor",
        "Kettle(material)": "parameter",
        "Kettle(j_kettle)": "parameter",
        "Kettle.LARGE: setLitres(6)": "setting",
        "Kettle.of": "method",
        'example: Kettle.of("tin")': "example",
        "Kettle.MAX_LITRES": "constant",
        "Colour": "class",
        "Colour.RED": "enum value",
    }
    assert [item.value for item in found if item.value is not None] == [6, 0]
    assert sections == [Section("Kettle", "Boiling and Pouring")]


def test_a_page_of_javadoc() -> None:
    found, sections = javadoc(JAVADOC)
    assert ids(found) == [
        "Kettle",
        "Boiler",
        "Vessel",
        "Kettle.LID_PREFIX",
        "Kettle()",
        "Kettle(metal)",
        "Kettle(spareLid)",
        "Kettle.boil",
        "Kettle.boil raises SteamException",
    ]
    assert found[-2].signature == "boil(long seconds) throws SteamException"
    assert sections == [Section("Kettle", "Kettle File")]


def test_a_summary() -> None:
    found, sections = summary(SUMMARY, METHODS)
    assert ids(found) == [
        "CheckpointConfig",
        "CheckpointStorage",
        "CheckpointConfig.get_heat",
        "CheckpointConfig.set_heat",
        "CheckpointConfig.set_steam",
        "CheckpointConfig.set_old_steam",
        "Tin",
    ]
    assert sections == [Section("CheckpointStorage", "Raw Water")]


def test_a_page_on_operations() -> None:
    found, sections = operations(OPERATING)
    assert {item.id: item.kind for item in found} == {
        "example: new Kettle(6)": "example",
        "example: CheckpointConfig config = env.getCheckpointConfig()": "example",
        "StreamExecutionEnvironment.get_checkpoint_config": "method",
        'example: config.setLid(new Lid("tin"))': "example",
        "CheckpointConfig.set_lid": "method",
        "bin/boil -s :kettle": "command",
        "example: state.kettle.lid: tin": "example",
        "state.kettle.lid": "option",
        "{kettle}": "layout",
        "lids": "layout",
        "cup-N": "layout",
    }
    assert sections == [Section(None, "Boiling")]


def _summary(text: str) -> object:
    return summary(text, METHODS)


@pytest.mark.parametrize(
    ("read", "text", "old", "new", "problem"),
    [
        (python_source, MODULE, "(Vessel):", "[Vessel]:", "1 of classes, and 0"),
        (python_source, MODULE, "def get_litres(self)", "def get_litres[T](self)", "2 of functions, and 1"),
        (python_source, MODULE, "raise ValueError(", "raise ValueError", "1 of errors, and 0"),
        (python_source, MODULE, ":param material:", ":param metal:", "parameter metal"),
        (python_source, MODULE, "'Kettle']", "'Kettle', 'Pot']", "__all__"),
        (sphinx, PAGE, "Colour[source]¶", "Colour [source]¶", r"3 of \[source\]¶, and 2"),
        (sphinx, PAGE, "MAX_LITRES = 6¶", "MAX-LITRES = 6¶", "5 of ¶, and 4"),
        (sphinx, PAGE, ">>> Kettle", "  >>> Kettle", "1 of examples, and 0"),
        (sphinx, PAGE, "  • setLitres(6)", "  • setLitres 6", "1 of settings, and 0"),
        (sphinx, PAGE, "material \N{EN DASH} ", "metal \N{EN DASH} ", "parameter metal"),
        (javadoc, JAVADOC, "abstract class", "abstract interface", "declares no class"),
        (javadoc, JAVADOC, "      • boil\n", "      • steam\n", "lists steam"),
        (javadoc, JAVADOC, "      • boil\n", "", "3 of modifiers, and 2"),
        (javadoc, JAVADOC, "SteamException - ", "SteamException: ", "1 of Throws:, and 0"),
        (_summary, SUMMARY, "Gets the heat", "Forgets the heat", "1 rows are 'Forgets the heat.'; .* nothing"),
        (_summary, SUMMARY, "Sets the heat. |\n|\n", "", "no row is left of set_heat"),
        (_summary, SUMMARY, "Only if\nOnly if |", "Only if |", "1 rows are 'Only if'; .* set_steam, set_old_steam"),
        (_summary, SUMMARY, "Sets the heat. |\n|\n|", "Sets the heat. |\n|\nSome words.\nOther words.", "is no row"),
        (operations, OPERATING, "new Kettle(6);", "new Kettle(6);\nwith words", "3 of statements, and 2"),
        (operations, OPERATING, "+ --lids", "+ ~~lids", "4 of directories, and 3"),
        (operations, OPERATING, "state.kettle.lid: tin", "heat.kettle.lid: tin", "an option was not extracted"),
    ],
)
def test_what_is_not_extracted_fails(
    read: Callable[[str], object], text: str, old: str, new: str, problem: str
) -> None:
    assert old in text
    with pytest.raises(Incomplete, match=problem):
        read(text.replace(old, new))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Two documents, with tables to match."""
    documents = (Document("Module", "__all__", python_source), Document("Page", "[source]¶", sphinx))
    monkeypatch.setattr(extraction, "DOCUMENTS", documents)
    monkeypatch.setattr(parity_names, "MENTIONS", {"Kettle.configure": ("method", r"\bconfigure\(\)")})
    monkeypatch.setattr(parity_names, "LAYOUT", {"tin": r"\btin\b"})
    monkeypatch.setattr(parity_names, "CONCEPTS", {"boiling": r"\bboils\b"})
    monkeypatch.setattr(parity_names, "HEADINGS", {})
    monkeypatch.setattr(parity_names, "LEFT_OUT", {"Imported": ("__all__", "__init__")})
    return {"Module": MODULE, "Page": PAGE.replace("It boils.", "It boils by configure().")}


def test_two_documents(small: dict[str, str]) -> None:
    data = extraction.extract(small)
    assert data["documents"] == ["Module", "Page"]
    assert data["left_out"] == {"__all__": "Imported", "__init__": "Imported"}
    by_id = {str(entry["id"]): entry for entry in data["named"]}
    assert list(by_id) == sorted(by_id)
    assert by_id["Kettle.MAX_LITRES"] == {
        "id": "Kettle.MAX_LITRES",
        "kind": "constant",
        "name": "MAX_LITRES",
        "owner": "Kettle",
        "value": 6,
        "documents": ["Module", "Page"],
    }
    assert by_id["Colour.RED"]["value"] == 0
    assert by_id["boiling"]["documents"] == ["Page"]
    assert by_id["Kettle: Boiling and Pouring"]["kind"] == "concept"
    assert extraction.render(data).count("\n  {") == len(by_id)


@pytest.mark.parametrize(
    ("title", "old", "new", "problem"),
    [
        ("Page", "It boils", "It boils in a BigPot", "Page: neither found nor left out: BigPot"),
        ("Page", "It boils", "It boils by set_fire", "neither found nor left out: set_fire"),
        ("Page", "It boils", "It boils by fire()", r"neither found nor left out: fire\(\)"),
        ("Page", "It boils", "It boils in a POT", "neither found nor left out: POT"),
        ("Page", "It boils by configure()", "It boils", "found in no document: Kettle.configure"),
        ("Page", "boils", "cooks", "found in no document: boiling"),
        ("Page", "MAX_LITRES = 6¶", "MAX_LITRES = 7¶", "has the value 6 in one document and 7 in another"),
        ("Page", "(material=None, j_kettle=None)", "()", r"Kettle\(\) has the signature"),
        ("Module", "__init__", "__new__", "left out, and in no document: __init__"),
        ("Module", "def get_litres(self)", "def get_litres[T](self)", "Module: the document has 2 of functions"),
    ],
)
def test_documents_that_do_not_fit(small: dict[str, str], title: str, old: str, new: str, problem: str) -> None:
    assert old in small[title]
    small[title] = small[title].replace(old, new)
    with pytest.raises(Incomplete, match=problem):
        extraction.extract(small)


def _store(directory: Path, texts: list[str]) -> Path:
    for number, text in enumerate(texts):
        (directory / f"{number}.txt").write_text(text, encoding="utf-8")
    return directory


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ([MODULE], "lacks Page"),
        ([MODULE, PAGE, PAGE], r"2\.txt is none"),
        ([MODULE, PAGE, "Something else"], r"2\.txt is none"),
        ([MODULE + PAGE], r"0\.txt is none"),
    ],
)
@pytest.mark.usefixtures("small")
def test_a_directory_without_exactly_the_documents(tmp_path: Path, texts: list[str], problem: str) -> None:
    with pytest.raises(Incomplete, match=problem):
        extraction.recognize(_store(tmp_path, texts))


def test_what_fails_writes_nothing(
    tmp_path: Path, small: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "data" / "named.json"
    monkeypatch.setattr(sys, "argv", ["extract", str(tmp_path), "--output", str(output)])
    with pytest.raises(SystemExit, match=r"Nothing was written: .* lacks Module, Page\."):
        extraction.main()
    assert not output.exists()
    _store(tmp_path, list(small.values()))
    extraction.main()
    assert "17 names" in capsys.readouterr().out
    first = output.read_bytes()
    extraction.main()
    assert output.read_bytes() == first
