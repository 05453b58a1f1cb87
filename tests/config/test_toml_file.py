"""The line of a key in a configuration file: where errors point, and that only the key itself is taken for it."""

from pathlib import Path

import pytest

from gpucommons.config.load import line_of, load
from gpucommons.config.option import ConfigError


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("[web]\nlisten = 'x'\n", "web.listen", 2),
        ("\n# listen\n[web] # listen\n\n  listen = 'x' # listen\n", "web.listen", 5),
        ("[mail]\nlisten = 1\n[web]\nlisten = 'x'\n", "web.listen", 4),
        ("[web]\nlisten_too = 1\nlisten = 'x'\n", "web.listen", 3),
        ("[web]\nabout = 'listen = 1'\nlisten = 'x'\n", "web.listen", 3),
        ("[web]\nabout = '''\nlisten = 1\n'''\nlisten = 'x'\n", "web.listen", 5),
        ("[web]\nabout = [\n['web'],\n]\nlisten = 'x'\n", "web.listen", 5),
        ('[ "web" ]\n"listen" = 1\n', "web.listen", 2),
        ("a = 1\nweb.listen = 'x'\n", "web.listen", 2),
        ("a = 1\nweb = {listen = 'x'}\n", "web.listen", 2),
        ("[quotas.alice]\nx = 1\n[quotas.bob]\nx = 1\n", "quotas.bob", 3),
        ("[quotas.alice]\nx = 1\n[quotas.bob]\nx = 1\n", "quotas.bob.x", 4),
        ("[web]\nlisten = [\n  'x',\n]\n# listen\n", "web.listen", None),
        ("[web]\nlisten = [\n  'x',\n] # listen\n", "web.listen", None),
        ('[web]\n"l\\u0069sten" = 1\n', "web.listen", None),
        ("[web]\n", "web.listen", None),
        ("web = 1\n", "web.listen", None),
    ],
)
def test_line_of_a_key(text: str, key: str, line: int | None) -> None:
    assert line_of(text, tuple(key.split("."))) == line


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[sampling]\n\nspeed = 7\n", 3, "line 3: unknown key 'sampling.speed'; "),
        ("[log]\n[sampling]\ninterval_s = 'fast'\n", 3, "line 3: 'sampling.interval_s': expected a number"),
        ("[dcgm]\nolder_hostname = true\n", 2, "line 2: 'dcgm.older_hostname' was replaced by "),
        ("# it\nlisten = 'x'\n", 2, "line 2: 'listen' is outside of any [section]"),
        ("[quotas]\nbob = 3\n", 2, "line 2: 'quotas.bob': expected a table with "),
        ("[quotas.bob]\ngpus = 3\n", 2, "line 2: 'quotas.bob': unknown key 'gpus'; "),
        ("[quotas.bob]\ngpu_equivalents = 'x'\n", 2, "line 2: 'quotas.bob': 'gpu_equivalents': expected a number"),
        ("[sampling]\ninterval_s = [\n1,\n]\n", None, "'sampling.interval_s': expected a number"),
        ("[sampling]\ninterval_s =\n", 2, "not valid TOML: "),
        (f"[sampling]\ninterval_s = {'9' * 5000}\n", None, "cannot be read as TOML: "),
        (f"[sampling]\ninterval_s = {'[' * 3000}{']' * 3000}\n", None, "cannot be read as TOML: "),
    ],
)
def test_an_error_in_a_file_has_its_line(tmp_path: Path, text: str, line: int | None, message: str) -> None:
    file = tmp_path / "g.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, {}, {})
    assert str(caught.value).startswith(f"{file}: {message}")
    assert caught.value.line == line


def test_an_error_elsewhere_has_no_line(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text("[sampling]\ninterval_s = 2\n")
    with pytest.raises(ConfigError) as caught:
        load(file, {"GPUCOMMONS_SAMPLING_INTERVAL_S": "soon"}, {})
    assert caught.value.line is None
    assert "g.toml" not in str(caught.value)
