"""Options of `mirrormq admin` from the command line, else from a configuration file, else their defaults."""

from __future__ import annotations

import argparse
import configparser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from ssl import CERT_NONE, SSLContext, create_default_context
from typing import Any, NoReturn

from mirrormq.ctl.admin.faults import Misused

FORMATS = ("table", "long", "tsv", "kvp", "raw_json", "pretty_json", "bash")
CONFIG = "~/.rabbitmqadmin.conf"
SECTION = "default"
PORT, TLS_PORT = 15672, 15671
SPELLINGS = {"hostname": "host", "base_uri": "uri"}
"""Keys of the file that are spelt otherwise on the line."""


@dataclass
class Options:
    """What was asked for beside the subcommand itself."""

    host: str = "localhost"
    port: int = 0
    path_prefix: str = ""
    vhost: str | None = None
    declare_vhost: str | None = None
    username: str = "guest"
    password: str = "guest"
    uri: str | None = None
    quiet: bool = False
    ssl: bool = False
    ssl_key_file: str | None = None
    ssl_cert_file: str | None = None
    ssl_ca_cert_file: str | None = None
    ssl_disable_hostname_verification: bool = False
    ssl_insecure: bool = False
    request_timeout: float = 120.0
    format: str = "table"
    sort: str | None = None
    sort_reverse: bool = False
    depth: int = 1

    @property
    def url(self) -> str:
        """Where the API is."""
        if self.uri:
            return self.uri.rstrip("/")
        scheme = "https" if self.ssl else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = self.port or (TLS_PORT if self.ssl else PORT)
        prefix = self.path_prefix.strip("/")
        return f"{scheme}://{host}:{port}" + (f"/{prefix}" if prefix else "")

    def context(self) -> SSLContext | None:
        """How the server is checked and who we say we are; None for plain HTTP."""
        if not self.url.startswith("https:"):
            return None
        try:
            context = create_default_context(cafile=self.ssl_ca_cert_file)
            if self.ssl_cert_file:
                context.load_cert_chain(self.ssl_cert_file, self.ssl_key_file)
        except OSError as error:
            raise Misused(f"the files for TLS cannot be used: {error}") from None
        if self.ssl_disable_hostname_verification or self.ssl_insecure:
            context.check_hostname = False
        if self.ssl_insecure:
            context.verify_mode = CERT_NONE
        return context


class Parser(argparse.ArgumentParser):
    """Says what is wrong and how to get help, and leaves the exit to the caller."""

    def error(self, message: str) -> NoReturn:
        """Refuse the line."""
        raise argparse.ArgumentError(None, message)


def parser() -> Parser:
    """All options; none has a default here, so that what was given can be told from what was not."""
    made = Parser(
        prog="mirrormq admin", add_help=False, argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    option = made.add_argument
    option("-h", "--help", action="store_true", help="show this text")
    option("--version", action="store_true", help="show the version")
    option("-c", "--config", metavar="FILE", help=f"configuration file ({CONFIG})")
    option("-N", "--node", metavar="NAME", help=f"section of the configuration file ({SECTION})")
    option("-H", "--host", metavar="HOST", help="where the node is (localhost)")
    option("-P", "--port", metavar="PORT", type=int, help=f"port of its API ({PORT}, with TLS {TLS_PORT})")
    option("--path-prefix", metavar="PATH", help="what stands before /api in its paths")
    option("-V", "--vhost", metavar="VHOST", help="virtual host (all for list, / for everything else)")
    option("-u", "--username", metavar="NAME", help="log in as (guest)")
    option("-p", "--password", metavar="TEXT", help="with this password (MIRRORMQ_PASSWORD, else guest)")
    option("-U", "--base-uri", metavar="URI", dest="uri", help="the whole address: http://host:15672")
    option("-q", "--quiet", action="store_true", help="only results")
    option("-s", "--ssl", action="store_true", help="use TLS")
    option("--ssl-key-file", metavar="FILE", help="our key, PEM")
    option("--ssl-cert-file", metavar="FILE", help="our certificate, PEM")
    option("--ssl-ca-cert-file", metavar="FILE", help="certificates of authorities, PEM")
    option("--ssl-disable-hostname-verification", action="store_true", help="whoever has a valid certificate")
    option("-k", "--ssl-insecure", action="store_true", help="whoever answers")
    option("-t", "--request-timeout", metavar="SECONDS", type=float, help="how long to wait (120)")
    option("-f", "--format", metavar="FORMAT", help=f"{', '.join(FORMATS)} (table)")
    option("-S", "--sort", metavar="COLUMN", help="order of a list")
    option("-R", "--sort-reverse", action="store_true", help="the other way round")
    option("-d", "--depth", metavar="N", type=int, help="how deep columns within columns are shown (1)")
    option("--bash-completion", action="store_true", help="show the script that completes in bash")
    option("words", nargs="*", help=argparse.SUPPRESS)
    return made


def read(words: Sequence[str], environment: Mapping[str, str]) -> tuple[Options, dict[str, Any], list[str]]:
    """The options, those that are no settings (help, version ...), and the words of the subcommand."""
    given = vars(parser().parse_intermixed_args(list(words)))
    rest = given.pop("words", [])
    names = ("help", "version", "bash_completion")
    asked: dict[str, Any] = {name: given.pop(name) for name in names if name in given}
    file, section = given.pop("config", None), given.pop("node", None)
    found = _from_file(file, section, environment)
    if "MIRRORMQ_PASSWORD" in environment:
        found.setdefault("password", environment["MIRRORMQ_PASSWORD"])
    options = Options(**{**found, **given})
    if options.format not in FORMATS:
        raise Misused(f"there is no format '{options.format}'; there are {', '.join(FORMATS)}")
    return options, asked, rest


def _from_file(file: str | None, section: str | None, environment: Mapping[str, str]) -> dict[str, Any]:
    home = environment.get("HOME", "")
    path = Path(file) if file else Path(CONFIG.replace("~", home, 1))
    if not file and (not home or not path.exists()):
        if section not in (None, SECTION):
            raise Misused(f"-N {section}: there is no configuration file {CONFIG}; name one with -c")
        return {}
    read_file = configparser.ConfigParser(inline_comment_prefixes=("#",), interpolation=None)
    try:
        with path.open(encoding="utf-8") as text:
            read_file.read_file(text)
    except OSError:
        raise Misused(f"Could not read config file '{path}'") from None
    except (configparser.Error, UnicodeDecodeError) as error:
        raise Misused(f"config file '{path}': {error}") from None
    if not read_file.has_section(section or SECTION):
        if section is None:
            return {}
        known = ", ".join(read_file.sections()) or "none"
        raise Misused(f"config file '{path}' has no section [{section}]; there are: {known}")
    return dict(map(_converted, read_file.items(section or SECTION)))


def _converted(pair: tuple[str, str]) -> tuple[str, Any]:
    key, text = pair
    name = SPELLINGS.get(key, key).replace("-", "_")
    kinds: dict[str, type] = {entry.name: type(entry.default) for entry in fields(Options)}
    if name not in kinds:
        raise Misused(f"the configuration file has an unknown key '{key}'")
    kind = kinds[name]
    try:
        if kind is bool:
            return name, configparser.ConfigParser.BOOLEAN_STATES[text.lower()]
        return name, kind(text) if kind in (int, float) else text
    except (KeyError, ValueError):
        raise Misused(f"the configuration file: '{text}' is no value for {key}") from None
