"""The help texts of `mirrormq admin`."""

from __future__ import annotations

from mirrormq.ctl.admin import objects
from mirrormq.ctl.admin.objects import Declared, Deleted
from mirrormq.ctl.admin.options import CONFIG, parser

TOPICS = ("subcommands", "config")
MORE = """
More help:

  mirrormq admin help subcommands   what can be done
  mirrormq admin help config        the configuration file
"""

CONFIG_TEXT = f"""\
Configuration file

Sections of a file hold settings of servers; -c names the file ({CONFIG}), -N the section (default).
What is given on the command line wins.

  [default]
  hostname = localhost
  port = 15672
  username = guest
  password = guest
  declare_vhost = /      # virtual host of declare and delete
  vhost = /              # virtual host of everything, list included

  [production]
  hostname = broker.example.org
  ssl = true
  ssl_ca_cert_file = /etc/ssl/ca.pem
  ssl_cert_file = /etc/ssl/me.pem
  ssl_key_file = /etc/ssl/me.key

Other keys: path_prefix, base_uri, quiet, ssl_insecure, ssl_disable_hostname_verification, request_timeout,
format, sort, sort_reverse, depth.

  mirrormq admin -c FILE -N production list queues
"""


def general() -> str:
    """Options, and where to read on."""
    made = parser()
    made.usage = "mirrormq admin [options] subcommand"
    return made.format_help() + MORE


def subcommands() -> str:
    """Everything that can be done."""
    lines = ["usage: mirrormq admin [options] subcommand", "", "Look", ""]
    lines += [f"  list {name} [<column>...]" for name in objects.LISTS]
    lines += [f"  show {name} [<column>...]" for name in objects.SHOWS]
    lines += ["", "Change", ""]
    lines += [f"  declare {name} {_arguments(entry)}" for name, entry in objects.DECLARES.items()]
    lines += [f"  delete {name} {_arguments(entry)}" for name, entry in objects.DELETES.items()]
    lines += [f"  close {name} {_arguments(entry)}" for name, entry in objects.CLOSES.items()]
    lines += [f"  purge {name} {_arguments(entry)}" for name, entry in objects.PURGES.items()]
    lines += ["", "Definitions", "", "  export <file>", "  import <file>", "", "Messages", ""]
    lines += [f"  publish {_arguments(objects.PUBLISH)}", f"  get {_arguments(objects.GET)}", ""]
    lines += [
        "Without payload, publish reads standard input. With payload_file, get writes the payload of one",
        "message there. arguments, definition, value and properties are JSON; booleans are true and false.",
    ]
    return "\n".join(lines) + "\n"


def _arguments(entry: Declared | Deleted) -> str:
    words = [f"{name}=..." for name in entry.needs]
    either = entry.either if isinstance(entry, Declared) else ()
    if either:
        words.append("(" + " or ".join(f"{name}=..." for name in either) + ")")
    optional = [f"{name}=..." for name in entry.takes if name not in either]
    return " ".join(words + ([f"[{' '.join(optional)}]"] if optional else []))
