"""Files of ssh and Ansible with the answers of the installed programs, recorded as data.

`tests/pubsubctl/real_files` has one case in each line: the text of a file, and how `ssh -G` or
`ansible-inventory` resolves each host. `python -m tests.helpers.real_files` runs the programs
again; write a line with a name and a text to add a case. A part of the cases is drawn from seeds.
"""

import json
import os
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from pubsubctl.hosts.ssh.client_config import ClientConfig
from pubsubctl.hosts.ssh.config_syntax import local_user
from pubsubctl.inventory.importers.ansible import _USED
from tests.helpers.ansible_program import interpreter, list_by_ansible
from tests.helpers.ssh_program import NoEquivalentError, RefusedError, resolve_hosts, route_by_ssh

FOLDER = Path(__file__).parents[1] / "pubsubctl" / "real_files"
KEYS = "/some/keys"
"""The value of KEYS, a variable that configurations name."""

USER = "@USER@"
INSIDE = "@FOLDER@"
"""Placeholders for the local user and the folder of the file."""

Case = dict[str, Any]


def cases(kind: str) -> list[Case]:
    """Return the recorded cases of `ssh` or `ansible`."""
    lines = (FOLDER / f"{kind}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def write_case(case: Case, folder: Path) -> Path:
    """Write the files of a case, and return the path of the first."""
    texts = {case.get("file", "config"): case["text"], **case.get("beside", {})}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(placed(text, folder), encoding="utf-8", newline="")
    return folder / next(iter(texts))


def placed(text: str, folder: Path) -> str:
    """Return a text with the folder and the local user filled in."""
    return text.replace(INSIDE, str(folder)).replace(USER, local_user())


def answer_of_ssh(case: Case, folder: Path) -> Any:
    """Return host → route; None for a route without an equivalent; "refused" for the file."""
    path = write_case(case, folder)
    names = case.get("names") or ClientConfig(path.read_text("utf-8"), path).names()
    found: dict[str, Any] = {}
    try:
        resolve_hosts(path, "any.host")
    except RefusedError:
        return "refused"
    for name in names:
        try:
            found[name] = [reached.row() for reached in route_by_ssh(path, name)]
        except (NoEquivalentError, RefusedError):
            found[name] = None
    text = json.dumps(found).replace(str(folder), INSIDE)
    return json.loads(re.sub(rf"(?<=id_){local_user()}\b", USER, text))


def answers_of_ansible(python: str, asked: list[Case], folder: Path) -> list[Any]:
    """Return for each case: hosts with variables, and groups; or "refused"."""
    texts = {f"{at}/{case['file']}": case["text"] for at, case in enumerate(asked)}
    beside = {
        f"{at}/{name}": text
        for at, case in enumerate(asked)
        for name, text in case.get("beside", {}).items()
    }
    listings = list_by_ansible(python, folder, texts, beside)
    return [_plain(listings[name]) for name in texts]


def _plain(listing: Any) -> Any:
    if isinstance(listing, str):
        return "refused"
    rows = listing["_meta"]["hostvars"]
    groups = {name: group for name, group in listing.items() if name not in ("_meta", "all")}
    names = sorted({host for group in groups.values() for host in group.get("hosts", [])})
    return {
        "hosts": {name: texts_of(rows.get(name, {})) for name in names},
        "groups": {
            name: [sorted(group.get("hosts", [])), sorted(group.get("children", []))]
            for name, group in sorted(groups.items())
        },
    }


def texts_of(values: dict[str, Any]) -> dict[str, str]:
    """Return the variables that decide on a connection, as texts."""
    found = {}
    for key, value in sorted(values.items()):
        plain = value.get("__ansible_unsafe", value) if isinstance(value, dict) else value
        if key in _USED and plain is not None:
            found[key] = str(plain)
    return found


def drawn_configuration(seed: int) -> Case:
    """Return a configuration with quotes, comments, tokens, routes, Match and Include."""
    draw = random.Random(seed)
    beside: dict[str, str] = {}
    names = ["n1", "n2", "web1", "db.lab"]
    gateways = ["gw", "edge.lab", "bastion"]
    patterns = [*names, *gateways, "*", "n*", "!n2", "*.lab", "?1", "gw*"]
    paths = ["%d/.ssh/id_%u", "${HOME}/k", '"~/my keys/x"', "~/a\\ b", "~/.ssh/%r@%h", "none"]
    paths += ["/k/%n-%p", "${KEYS}/x", "~/%k", "/abs/x"]
    jumps = ["gw", "ops@gw", "gw:2222", "none", "NONE", "edge.lab,gw", "ssh://a@gw:22", "%r@gw"]
    commands = ["none", "ssh -W %h:%p gw", "ssh -q -W [%h]:%p -p 2200 ops@gw", "nc %h %p"]
    commands += ['"ssh -W %h:%p bastion"', "ssh -l %r -W %h:%p gw"]
    values = {
        "Port": [str(number) for number in range(1, 99)],
        "User": ["lab", "ops", "a.b"],
        "HostName": ["10.0.0.1", "10.0.0.2", "%h.lab", "x-%h.lab", "2001:db8::7", "H.Lab"],
        "IdentityFile": paths,
        "ProxyJump": [*jumps, "bastion", "u@10.7.7.7:22"],
        "ProxyCommand": commands,
        "HostKeyAlias": ["al"],
        "Compression": ["yes"],
    }
    matches = ["host n*", "host=10.0.0.*", "host *.lab,!db*", "host gw", "originalhost n1,web1"]
    matches += ["user ops", "!user ops host g*", "final host *.lab", "all", 'host "gw" user "a"']
    matches += [f"localuser {USER}", "localuser nobody", "originalhost gw user lab"]

    def comment() -> str:
        return draw.choice(["", "", " # moved", " #x", "\t# it's"])

    def setting() -> str:
        key = draw.choice([*values, "User", "IdentityFile", "ProxyJump"])
        value = draw.choice(values[key])
        if key in ("Port", "User", "HostName"):
            value = draw.choice([value, value, f'"{value}"', f"'{value}'"])
        is_route = key.startswith("Proxy")
        between = draw.choice([" ", " ", "\t", "=", " = "])
        return f"  {key}{between}{value}{'' if is_route else comment()}"

    def header() -> str:
        if draw.random() < 0.3:
            return f"Match {draw.choice(matches)}{comment()}"
        chosen = draw.sample(patterns, draw.randint(1, 3))
        return "Host " + " ".join(draw.choice([one, f'"{one}"']) for one in chosen) + comment()

    def block(is_inner: bool) -> list[str]:
        lines = [setting() for _ in range(draw.randint(0, 2))] if is_inner else []
        for _ in range(draw.randint(0, 2) if is_inner else draw.randint(1, 5)):
            lines.append(header())
            for _ in range(draw.randint(1, 5)):
                if not is_inner and draw.random() < 0.05:
                    name = f"inc{len(beside)}"
                    beside[name] = ""
                    beside[name] = "\n".join([*block(True), ""])
                    lines.append(f"  Include {INSIDE}/{draw.choice([name, 'inc*'])}")
                else:
                    lines.append(setting())
        return lines

    lines = [*block(False), f"Host {' '.join(names)}", "  TCPKeepAlive yes", ""]
    return {"name": f"seed-{seed}", "text": "\n".join(lines), "beside": beside}


def drawn_inventory(seed: int) -> Case:
    """Return an inventory with nested groups, priorities, ranges, quotes and comments."""
    draw = random.Random(seed)
    groups = [
        draw.choice(["g{}", "G{}", "lab-{}", "a.b{}"]).format(number)
        for number in range(draw.randint(2, 7))
    ]
    hosts = ["n1", "n2", "n3:2222", "web[1:3]", "w[01:03].lab:22", "db.lab", "10.0.0.[7:8]"]
    hosts += ["[2001:db8::12]:2222", "2001:db8::13", "node[A:C]", "r[:2]"]
    values = {
        "ansible_user": ["a", "'c d'", '"e"', "'f'", "007", "True", "1.50", "None", "x#y"],
        "ansible_port": ["22", "2222", "0x16", "'23'", '"24"'],
        "ansible_host": ["10.0.0.1", "h.lab", "2001:db8::1", "'q.lab'"],
        "ansible_ssh_common_args": [
            "'-o ProxyCommand=\"ssh -W %h:%p -q gw@203.0.113.7\"'",
            "'-o ProxyJump=\"bench@gw\"'",
            "\"-o ProxyCommand='ssh -W %h:%p gw'\"",
            "'-J a@b:22'",
        ],
        "ansible_private_key_file": ["~/.ssh/id", "'/k/a b'"],
        "ansible_ssh_extra_args": ["'-o User=z'", "'-p 7'"],
        "other": ["[1, 2]", "{'a': 1}", "'{{ x }}'"],
        "ansible_group_priority": ["1", "2", "10", "-3", "'7'"],
    }
    own = [*values][:-1]

    def row(most: int, names: list[str]) -> list[tuple[str, str]]:
        return [(k, draw.choice(values[k])) for k in draw.sample(names, draw.randint(0, most))]

    inside = {g: [(h, row(3, own)) for h in draw.sample(hosts, draw.randint(0, 4))] for g in groups}
    shared = {group: row(5, [*values]) for group in [*groups, "all", "ungrouped"]}
    below = {
        g: [b for b in groups[at + 1 :] if draw.random() < 0.35] for at, g in enumerate(groups)
    }
    if draw.random() < 0.5:
        sections = []
        for group in groups:
            rows = [
                " ".join([h, *(f"{k}={v}" for k, v in settings)]) for h, settings in inside[group]
            ]
            sections.append([f"[{group}]", *(line + draw.choice(["", " # c"]) for line in rows)])
            sections += [[f"[{group}:children]", *below[group]]] if below[group] else []
        for group, settings in shared.items():
            lines = [f"{key}{draw.choice(['=', ' = '])}{value}" for key, value in settings]
            sections += [[f"[{group}:vars]", *lines]] if lines else []
        draw.shuffle(sections)
        text = "\n".join(line for section in sections for line in section)
        return {
            "name": f"seed-{seed}",
            "file": draw.choice(["h.ini", "h.yml"]),
            "text": f"{text}\n",
        }
    lines = []
    for group in draw.sample([*groups, "all", "ungrouped"], len(groups) + 2):
        lines.append(f"{group}:")
        lines += ["  hosts:"] if inside.get(group) else []
        for host, settings in inside.get(group, []):
            table = ", ".join(f"{key}: {value}" for key, value in settings)
            lines.append(f'    "{host}": {{{table}}}')
        lines += ["  vars:"] if shared[group] else []
        lines += [f"    {key}: {value}" for key, value in shared[group]]
        lines += ["  children:"] if below.get(group) else []
        lines += [f"    {child}:" for child in below.get(group, [])]
    return {"name": f"seed-{seed}", "file": "h.yaml", "text": "\n".join([*lines, ""])}


def main() -> None:
    """Run the installed programs on all cases, and write their answers."""
    os.environ["KEYS"] = KEYS
    with tempfile.TemporaryDirectory() as name:
        asked = cases("ssh")
        for at, case in enumerate(asked):
            folder = Path(name) / str(at)
            folder.mkdir()
            case["answer"] = answer_of_ssh(case, folder)
        _write("ssh", asked)
        python = interpreter()
        if python is None:
            sys.exit("no ansible-inventory is installed, so its answers stay as they are")
        asked = cases("ansible")
        answers = answers_of_ansible(python, asked, Path(name) / "ansible")
        _write("ansible", [{**case, "answer": a} for case, a in zip(asked, answers, strict=True)])


def _write(kind: str, rows: list[Case]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (FOLDER / f"{kind}.jsonl").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
