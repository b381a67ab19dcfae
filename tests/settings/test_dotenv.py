"""`.env`: what its lines mean, what is wrong with them, and what it adds to an environment."""

import os
from pathlib import Path
from threading import Thread

import pytest

from headgate.core.problems import InvalidSettings
from headgate.settings.dotenv import Dotenv, read_dotenv

HUSH = "hush-hush"


def _read(folder: Path, content: str | bytes) -> dict[str, str]:
    file = folder / ".env"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_dotenv(file)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("export A=b", "b"),
        ("  export\tA = b  ", "b"),
        ("A=", ""),
        ("A= # a comment", ""),
        ("A=b # a comment", "b"),
        ("A=b#c", "b#c"),
        ("A=#b", "#b"),
        ("A=b c", "b c"),
        ("A=b=c", "b=c"),
        ("A='b # c'", "b # c"),
        ("A='it is \\n' # a comment", "it is \\n"),
        ('A="b # c"#comment', "b # c"),
        ('A="one\\ntwo\\t\\"three\\" \\\\ \\$4 C:\\dir"', 'one\ntwo\t"three" \\ $4 C:\\dir'),
        ('A=""', ""),
        ("A='one\ntwo'", "one\ntwo"),
        ('A="one\r\ntwo"', "one\ntwo"),
        ("A=b'c'", "b'c'"),
        ("A=${B}", "${B}"),
        ("A=ü", "ü"),
        ("A=first\nA=last", "last"),
    ],
)
def test_a_line_sets_a_variable(tmp_path: Path, line: str, value: str) -> None:
    assert _read(tmp_path, f"# before\n\n{line}\nZ=after") == {"A": value, "Z": "after"}


def test_a_byte_order_mark_other_line_ends_and_a_missing_last_one_are_no_mistakes(tmp_path: Path) -> None:
    assert _read(tmp_path, b"\xef\xbb\xbfA=1\r\nB=2\r\n\r\nC=3") == {"A": "1", "B": "2", "C": "3"}
    assert _read(tmp_path, "") == {}


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        (f"SECRET {HUSH}", "must be NAME=value"),
        (f"{HUSH}=x", "must be NAME=value"),
        (f"export {HUSH}", "must be NAME=value"),
        (f"={HUSH}", "must be NAME=value"),
        (f"A='{HUSH}", "begins with a quote and does not end with it"),
        (f'A="{HUSH}\\"', "begins with a quote and does not end with it"),
        (f"A='{HUSH}' x", "begins with a quote and does not end with it"),
        (f"A={HUSH}\0", "a NUL character"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_by_its_number_and_never_shown(
    tmp_path: Path, line: str, mistake: str
) -> None:
    with pytest.raises(InvalidSettings, match=mistake) as caught:
        _read(tmp_path, f'FIRST="two\nlines"\n{line}\nLAST=1\n')
    assert ".env line 3: " in str(caught.value)
    assert "hush" not in str(caught.value)


def test_all_mistakes_are_named_up_to_a_number_that_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings) as caught:
        _read(tmp_path, "wrong\n" * 12)
    result = str(caught.value)
    assert [f"line {number}:" in result for number in (1, 10, 11)] == [True, True, False]
    assert ".env: 2 more lines cannot be read" in result


@pytest.mark.parametrize(
    ("content", "mistake"),
    [(b"A=\xff", "not UTF-8 text"), ("A=1".encode("utf-16"), "not UTF-8 text"), (b"#" * 1_000_001, "larger")],
)
def test_a_file_that_is_no_such_text_is_refused(tmp_path: Path, content: bytes, mistake: str) -> None:
    with pytest.raises(InvalidSettings, match=mistake):
        _read(tmp_path, content)


def test_a_missing_file_and_a_folder_of_that_name_set_nothing(tmp_path: Path) -> None:
    """`python -m venv .env` makes such a folder."""
    assert read_dotenv(tmp_path / ".env") == {}
    (tmp_path / ".env").mkdir()
    assert read_dotenv(tmp_path / ".env") == {}


def test_a_link_to_a_file_is_read_and_one_to_nothing_is_not(tmp_path: Path) -> None:
    (tmp_path / ".env").symlink_to(tmp_path / "shared.env")
    assert read_dotenv(tmp_path / ".env") == {}
    (tmp_path / "shared.env").write_text("A=1")
    assert read_dotenv(tmp_path / ".env") == {"A": "1"}


def test_a_pipe_that_another_program_writes_is_read(tmp_path: Path) -> None:
    """Secret managers mount `.env` as a named pipe."""
    os.mkfifo(tmp_path / ".env")
    writer = Thread(target=(tmp_path / ".env").write_text, args=("A=1\n",))
    writer.start()
    assert read_dotenv(tmp_path / ".env") == {"A": "1"}
    writer.join()


def test_the_environment_goes_first_also_where_a_variable_is_empty_there(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("SET=file\nEMPTY=file\nNEW=file\n")
    environment = {"SET": "here", "EMPTY": ""}
    Dotenv(environment, tmp_path / ".env").read()
    assert environment == {"SET": "here", "EMPTY": "", "NEW": "file"}


def test_reading_again_takes_over_what_changed_and_withdraws_what_is_gone(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("CHANGED=1\nGONE=1\nOWN=file\n")
    environment = {"OWN": "here"}
    dotenv = Dotenv(environment, file)
    dotenv.read()
    file.write_text("CHANGED=2\nNEW=2\nOWN=changed\n")
    dotenv.read()
    assert environment == {"OWN": "here", "CHANGED": "2", "NEW": "2"}
    file.write_text("wrong")
    with pytest.raises(InvalidSettings):
        dotenv.read()
    assert environment == {"OWN": "here", "CHANGED": "2", "NEW": "2"}
    environment["NEW"] = "taken over by the program"
    dotenv.withdraw()
    assert environment == {"OWN": "here", "NEW": "taken over by the program"}
