"""Stories about Ansible inventories: the importer resolves each host as `ansible-inventory` does.

The expected values are those of the installed program. A part of the inventories is drawn from a
printed seed.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from pubsubctl.errors import UserError
from pubsubctl.inventory.importers import ansible
from pubsubctl.inventory.importers.ansible import read_folders
from pubsubctl.inventory.importers.ansible_groups import Groups
from tests.helpers.ansible_program import VARIABLE, interpreter, list_by_ansible

SEED = 20_261_128
GENERATED = 24
PYTHON = interpreter()

INI = {
    "plain": "n1\nn2 ansible_host=10.0.0.2 ansible_port=2222 ansible_user=lab\n",
    "comments": (
        "# a\n; b\nn1 ansible_user=a # mine\n[g] # group\nn2 # host\n[g:vars] #x\nansible_port=5\n"
    ),
    "ranges": "n[1:3]\nm[01:03].lab\nx[a:c]\ny[A:C]\nr[:3]\nq[1:9:2]\nz[a:i:3]\n",
    "mixed-letters": "n[y:B]\n",
    "two-ranges": "r[1:2]n[01:02]\n10.0.0.[1:3]\n",
    "range-steps": "n[0:10:5]\nk[00:10:5]\n",
    "range-of-upper-case-and-port": "node[A:C]:2222\nn[1:2]:2200 ansible_user=x\n",
    "port": "n1:2222\nn2.lab:22\n10.0.0.1:23\n",
    "port-twice": "[a]\nn1\n[b]\nn1:2222\n",
    "port-first": "[a]\nn1:2222\n[b]\nn1:2223\n",
    "port-and-variable": "n1:2222 ansible_port=23\n",
    "ipv6": "[2001:db8::12]:2222\n2001:db8::13\nfe80::1 ansible_host=fe80::2\n",
    "ipv6-range": "2001:db8::[1:3]\n[2001:db8::[5:6]]:2222\n",
    "vars-comment": "n1\n[all:vars]\nansible_port=2222 # moved\nansible_user='bench' # ours\n",
    "vars-comment-in-text": "n1\n[all:vars]\nansible_user=bench # ours\n",
    "vars-spaces": "n1\n[all:vars]\nansible_user = bench\n ansible_port= 7 \n",
    "vars-quotes": "n1\n[all:vars]\nansible_user=\"a\"\nansible_host='h.x'\nansible_port='22'\n",
    "vars-inner-quotes": (
        "n1\n[all:vars]\n"
        "ansible_ssh_common_args='-o ProxyCommand=\"ssh -W %h:%p -q gw@203.0.113.7\"'\n"
    ),
    "vars-inner-quotes-other": (
        "n1\n[all:vars]\nansible_ssh_common_args=\"-o ProxyCommand='ssh -W %h:%p gw'\"\n"
        "ansible_ssh_extra_args='-o ProxyJump=\"bench@gw\"'\n"
    ),
    "vars-no-quotes": "n1\n[all:vars]\nansible_ssh_common_args=-o ProxyJump=gw\n",
    "vars-half-quoted": "n1\n[all:vars]\nansible_user='a\n",
    "vars-equals": "n1\n[all:vars]\nansible_ssh_common_args=-o A=b -o C=d\n",
    "vars-empty": "n1 ansible_user=x\n[all:vars]\nansible_port=\n",
    "numbers": (
        "n1 ansible_port=0x16\nn2 ansible_port=0o26\nn3 ansible_port=022\nn4 ansible_port=2_2\n"
    ),
    "floats": "n1 ansible_host=10.0 ansible_user=1e3\nn2 ansible_host=1.2.3.4\n",
    "booleans": "n1 ansible_user=True\nn2 ansible_user=yes\nn3 ansible_user=None\n",
    "literals": "n1 ansible_user=\"'lab'\" x='[1, 2]' y='{\"a\": 1}'\nn2 ansible_user='u\"x\"'\n",
    "signs": (
        "n1 ansible_port=+22\nn2 ansible_port=-22\nn3 ansible_user=1+1\nn4 ansible_user=1+2j\n"
    ),
    "quoted-host-variables": "n1 ansible_user='a b' ansible_host=\"h\"\n",
    "hash-in-a-word": "n1 ansible_user=a#b ansible_host=h\n",
    "host-groups": "[a]\nn1 ansible_user=first\n[b]\nn1 ansible_user=second\nn2\n[a]\nn3\n",
    "children": "[c]\nn1\n[p:children]\nc\n[p:vars]\nansible_user=p\n[c:vars]\nansible_user=c\n",
    "children-first": "[p:children]\nc # below\n[p:vars]\nansible_user=p\n[c]\nn1\n",
    "children-of-children": (
        "[a:children]\nb\n[b:children]\nc\n[c]\nn1\n[d]\nn1\n"
        "[a:vars]\nansible_user=a\nansible_port=1\n[b:vars]\nansible_user=b\nansible_host=b\n"
        "[c:vars]\nansible_port=3\n[d:vars]\nansible_user=d\nansible_host=d\n"
    ),
    "deeper-wins": (
        "[z]\nn1\n[y:children]\nx\n[x]\nn1\n[z:vars]\nansible_user=z\n[x:vars]\nansible_user=x\n"
    ),
    "two-parents": (
        "[a:children]\nc\n[b:children]\nc\n[c]\nn1\n[a:vars]\nansible_user=a\n[b:vars]\n"
        "ansible_user=b\n"
    ),
    "priority": (
        "[a]\nn1\n[b]\nn1\n[a:vars]\nansible_user=a\nansible_group_priority=10\n"
        "[b:vars]\nansible_user=b\n"
    ),
    "priority-below-one": (
        "[a]\nn1\n[b]\nn1\n[a:vars]\nansible_user=a\n[b:vars]\nansible_user=b\n"
        "ansible_group_priority=0\n"
    ),
    "priority-does-not-beat-depth": (
        "[p:children]\nc\n[c]\nn1\n[p:vars]\nansible_user=p\nansible_group_priority=99\n"
        "[c:vars]\nansible_user=c\n"
    ),
    "priority-equal": (
        "[b]\nn1\n[a]\nn1\n[a:vars]\nansible_user=a\nansible_group_priority=5\n"
        "[b:vars]\nansible_user=b\nansible_group_priority='5'\n"
    ),
    "priority-on-a-host": (
        "[a]\nn1 ansible_group_priority=9\n[b]\nn1\n[a:vars]\nansible_user=a\n[b:vars]\n"
        "ansible_user=b\n"
    ),
    "ungrouped-vars": "n1\n[g]\nn2\nn3\n[ungrouped]\nn3\n[ungrouped:vars]\nansible_user=u\n",
    "all-section": "[all]\nn1\n[all:vars]\nansible_user=x\n[g]\nn1\n[g:vars]\nansible_user=g\n",
    "all-children": (
        "[all:children]\na\nb\n[a]\nn1\n[b]\nn1\n[a:vars]\nansible_user=a\n[b:vars]\n"
        "ansible_user=b\n"
    ),
    "vars-before-group": "[g:vars]\nansible_user=x\n[g]\nn1\n",
    "variables-twice": "n1\n[all:vars]\nansible_user=a\nansible_user=b\n",
    "host-named-as-group": "[n1]\nn1 ansible_user=x\n",
    "group-names": "[load-gen]\nn1\n[a.b]\nn2\n",
    "old-names": "n1 ansible_ssh_host=a ansible_ssh_port=5 ansible_ssh_user=u ansible_host=b\n",
    "crlf": "[g]\r\nn1 ansible_user=x\r\n\r\n[g:vars]\r\nansible_port=5\r\n",
    "local": "localhost ansible_connection=local\nn1\n",
    "spaces": "  n1   ansible_user=x\t ansible_port=5  \n\t[g]\n\tn2\n",
    "unicode": "n1 owner=Zoë\n",
    "a-host-called-as-an-earlier-group": "[g]\nn1\n[a]\ng ansible_user=x\n",
    "a-host-called-as-a-later-group": "[a]\ng ansible_user=x\n[g]\nn1\n",
}
INI_IN_YML = {
    "ini": "[brokers]\nn1 ansible_host=10.0.0.1\nn2\n[brokers:vars]\nansible_user=x\n",
    "ini-only-hosts": "n1\nn2\n",
    "ini-with-colons": "[g]\nn1:2222\n[g:vars]\nansible_ssh_common_args='-o A=b: c'\n",
}
YAML = {
    "plain": "all:\n  hosts:\n    n1:\n    n2: {ansible_host: 10.0.0.2, ansible_port: 2222}\n",
    "a-text-as-hosts": "g:\n  hosts: n1\nh:\n  hosts: m[1:3]\n",
    "a-text-as-children": "g:\n  children: h\nh:\n  hosts: n1\n  vars: {ansible_user: x}\n",
    "anchors-in-unused": (
        "x: &x {hosts: {n1: {a: &l [1, 2], b: *l}}}\ny: {vars: {c: *x}, hosts: {n2: }}\n"
    ),
    "anchors-of-variables": (
        "g:\n  vars: &v {ansible_user: a, ansible_port: 5}\n  hosts: {n1: }\n"
        "h:\n  vars: *v\n  hosts: {n2: }\n"
    ),
    "anchor-of-a-text": (
        "g:\n  hosts:\n    n1: {ansible_user: &u lab}\n    n2: {ansible_user: *u}\n"
    ),
    "merge": (
        "g:\n  hosts:\n    n1: &d {ansible_user: a, ansible_port: 5}\n"
        "    n2: {<<: *d, ansible_user: b}\n    n3: {ansible_user: c, <<: *d}\n"
    ),
    "merge-list": (
        "g:\n  hosts:\n    n1: &a {ansible_user: a}\n    n2: &b {ansible_port: 2}\n"
        "    n3: {<<: [*a, *b]}\n"
    ),
    "unsafe": "all:\n  hosts:\n    n1: {note: !unsafe 'a{{b', ansible_user: !unsafe lab}\n",
    "unsafe-list": "all:\n  hosts:\n    n1: {note: !unsafe [a, b]}\n",
    "numbers": (
        "all:\n  hosts:\n    n1: {ansible_port: 0x16}\n    n2: {ansible_port: 026}\n"
        "    n3: {ansible_port: 2_2}\n"
    ),
    "booleans": (
        "all:\n  hosts:\n    n1: {ansible_user: yes}\n    n2: {ansible_user: 'yes'}\n"
        "    n3: {ansible_user: on}\n"
    ),
    "nulls": (
        "all:\n  vars: {ansible_user: a}\n  hosts:\n    n1: {ansible_user: ~}\n"
        "    n2: {ansible_user: }\n    n3:\n"
    ),
    "floats": (
        "all:\n  hosts:\n    n1: {ansible_host: 10.0}\n    n2: {ansible_host: 1e3}\n"
        "    n3: {ansible_user: .5}\n"
    ),
    "dates": "all:\n  hosts:\n    n1: {ansible_host: h, since: 2024-01-01}\n",
    "explicit-tags": "all:\n  hosts:\n    n1: {ansible_port: !!str 22, ansible_user: !!int '5'}\n",
    "block-texts": (
        "all:\n  hosts:\n    n1:\n      ansible_user: >-\n        lab\n      note: |\n"
        "        a\n        b\n"
    ),
    "ranges": "all:\n  hosts:\n    n[1:3]:\n    m[A:C]:2222:\n    r[:2]: {ansible_user: x}\n",
    "ipv6": "all:\n  hosts:\n    '[2001:db8::12]:2222':\n    2001:db8::13:\n",
    "port": "all:\n  hosts:\n    n1:2222:\n    n2:23: {ansible_port: 5}\n",
    "priority": (
        "a: {hosts: {n1: }, vars: {ansible_user: a, ansible_group_priority: 10}}\n"
        "b: {hosts: {n1: }, vars: {ansible_user: b}}\n"
    ),
    "depth": (
        "all:\n  children:\n    p:\n      vars: {ansible_user: p, ansible_port: 1}\n"
        "      children:\n        c: {hosts: {n1: }, vars: {ansible_user: c}}\n"
        "    z: {hosts: {n1: }, vars: {ansible_user: z, ansible_port: 9}}\n"
    ),
    "one-group-in-two-places": (
        "all:\n  children:\n    a: {children: {c: {hosts: {n1: }}}}\n"
        "    b: {children: {c: {vars: {ansible_user: x}}}}\n"
    ),
    "top-level-groups": (
        "a:\n  hosts: {n1: {ansible_user: a}}\nb:\n  hosts: {n1: {ansible_user: b}}\n"
    ),
    "order-of-keys": (
        "g:\n  children: {c: {hosts: {n1: {ansible_user: c}}}}\n  hosts: {n1: {ansible_user: g}}\n"
    ),
    "ungrouped": (
        "ungrouped:\n  hosts: {n1: , n2: }\n  vars: {ansible_user: u}\ng: {hosts: {n2: }}\n"
    ),
    "empty-sections": "g:\n  hosts:\n    n1:\n  vars:\n  children:\nh:\n",
    "an-extra-key": "g:\n  hosts: {n1: }\n  description: {a: b}\n",
    "document-start": "---\n# comment\nall:\n  hosts:\n    n1: {ansible_user: x}\n...\n",
    "a-host-called-as-a-group": (
        "g:\n  hosts: {n1: }\na:\n  hosts: {g: {ansible_user: x, ansible_port: 5}}\n"
    ),
    "json": '{"all": {"hosts": {"n1": {"ansible_port": 22, "ansible_user": "x"}, "n2": null}}}',
    "comments": "all:  # a\n  hosts: # b\n    n1:   # c\n      ansible_user: a#b # d\n",
}
REFUSED = {
    "ghost.ini": "[top:children]\nghost\n[g]\nn1\n",
    "ghost-vars.ini": "[g]\nn1\n[gg:vars]\na=b\n",
    "section-kind.ini": "[g:hosts]\nn1\n[g:var]\na=b\n",
    "no-equals.ini": "n1 word\n",
    "vars-no-equals.ini": "n1\n[all:vars]\nword\n",
    "quote.ini": "n1 ansible_user='open\n",
    "range-digits.ini": "n[01:3]\n",
    "range-no-end.ini": "n[1:]\n",
    "range-mixed.ini": "n[a:9]\n",
    "section-blank.ini": "[a b]\nn1\n",
    "colon.ini": "n1:\n",
    "circle.ini": "[a:children]\nb\n[b:children]\na\n[a]\nn1\n",
    "priority-text.ini": "[a]\nn1\n[a:vars]\nansible_group_priority=high\n",
    "list.yml": "all:\n  hosts: [n1]\n",
    "plugin.yml": "plugin: no.such.plugin\n",
    "text.yml": "just a text\n",
    "open.yml": "all: {hosts: {n1: 'open}}\n",
    "alias.yml": "all: {hosts: *missing}\n",
    "value.yml": "all: {hosts: {n1: {ansible_user: =}}}\n",
}
WITH_FOLDERS = {
    "f1/hosts": "[g]\nn1 ansible_user=own\nn2\n[g:vars]\nansible_user=inside\nansible_port=1\n",
    "f2/hosts": "[p:children]\ng\nh\n[g]\nn1\n[h]\nn1\n[h:vars]\nansible_user=h\n",
    "f3/hosts.yml": "g:\n  hosts: {n1: {ansible_host: a}, n2: , n3: }\n",
}
BESIDE = {
    "f1/group_vars/all.yml": "ansible_user: all\nansible_host: h.lab\n",
    "f1/group_vars/g": "ansible_port: 5\n",
    "f1/group_vars/other.yml": "ansible_port: 6\n",
    "f1/host_vars/n1.yml": "ansible_user: file\n",
    "f2/group_vars/p.yaml": "ansible_user: p\nansible_port: 1\nansible_group_priority: 9\n",
    "f2/group_vars/g.json": '{"ansible_port": 2, "ansible_host": "x"}',
    "f2/group_vars/h/a.yml": "ansible_port: 3\n",
    "f2/group_vars/h/b": "ansible_host: b\n",
    "f2/group_vars/h/.c.yml": "ansible_host: c\n",
    "f2/group_vars/h/d.txt": "ansible_host: d\n",
    "f2/group_vars/h/e/f.yml": "ansible_private_key_file: /k\n",
    "f2/host_vars/n1": "---\n",
    "f3/host_vars/n1/x.yml": "ansible_host: b\nansible_user: &u [a]\nother: *u\n",
    "f3/host_vars/n2": "ansible_host: c\n",
    "f3/host_vars/n2.yml": "ansible_host: d\n",
}
INVENTORIES = {
    **{f"{name}.ini": text for name, text in INI.items()},
    **{f"{name}-as.yml": text for name, text in INI_IN_YML.items()},
    **{f"{name}-plain": text for name, text in INI_IN_YML.items()},
    **{f"{name}.yml": text for name, text in YAML.items()},
    **WITH_FOLDERS,
}


def generated(seed: int) -> tuple[str, str]:
    """Return the name and text of an inventory of nested groups, drawn from a seed."""
    draw = random.Random(seed)
    groups = [f"g{number}" for number in range(draw.randint(2, 6))]
    hosts = ["n1", "n2", "web[1:3]", "db.lab", "10.0.0.7"]
    keys = {
        "ansible_user": ["a", "b", "'c d'"],
        "ansible_port": ["22", "2222", "0x16"],
        "ansible_host": ["10.0.0.1", "h.lab"],
        "ansible_group_priority": ["1", "2", "10"],
    }

    def variables(most: int, names: list[str]) -> list[tuple[str, str]]:
        chosen = draw.sample(names, draw.randint(0, min(most, len(names))))
        return [(name, draw.choice(keys[name])) for name in chosen]

    own = {
        group: [
            (host, variables(2, [*keys][:3])) for host in draw.sample(hosts, draw.randint(0, 3))
        ]
        for group in groups
    }
    shared = {group: variables(4, [*keys]) for group in [*groups, "all"]}
    children = {
        group: [below for below in groups[at + 1 :] if draw.random() < 0.4]
        for at, group in enumerate(groups)
    }
    lines = []
    if draw.random() < 0.5:
        for group in groups:
            lines.append(f"[{group}]")
            lines += [" ".join([h, *(f"{k}={v}" for k, v in row)]) for h, row in own[group]]
        for group in draw.sample(groups, len(groups)):
            lines += [f"[{group}:children]", *children[group]] if children[group] else []
        for group, row in shared.items():
            lines += [f"[{group}:vars]", *(f"{key}={value} # x" for key, value in row)]
        # A comment after a plain text is a part of the text, so those go.
        lines = [
            line.replace(" # x", "") if "_user" in line or "_host" in line else line
            for line in lines
        ]
        return f"seed-{seed}.ini", "\n".join(lines) + "\n"
    for group in [*draw.sample(groups, len(groups)), "all"]:
        lines.append(f"{group}:")
        if own.get(group):
            lines.append("  hosts:")
            lines += [
                f"    {h}: {{{', '.join(f'{k}: {v}' for k, v in row)}}}" for h, row in own[group]
            ]
        if shared[group]:
            lines += ["  vars:", *(f"    {key}: {value}" for key, value in shared[group])]
        if children.get(group):
            lines += ["  children:", *(f"    {child}:" for child in children[group])]
    return f"seed-{seed}.yml", "\n".join(lines) + "\n"


ALL = {**INVENTORIES, **dict(generated(SEED + number) for number in range(GENERATED))}

real_ansible = pytest.mark.skipif(
    PYTHON is None, reason=f"needs ansible-inventory, in PATH or by {VARIABLE}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("inventories")


@pytest.fixture(scope="module")
def listings(folder: Path) -> dict[str, Any]:
    assert PYTHON is not None
    return list_by_ansible(PYTHON, folder, {**ALL, **REFUSED}, BESIDE)


@real_ansible
@pytest.mark.parametrize("name", ALL)
def test_an_inventory_is_resolved_as_by_ansible(
    listings: dict[str, Any], folder: Path, name: str
) -> None:
    theirs = listings[name]
    assert isinstance(theirs, dict), f"a story that Ansible refuses: {theirs}"
    groups = ansible._groups_of(ALL[name], folder / name)
    read_folders(groups, folder / name)
    hosts = theirs["_meta"]["hostvars"]
    members = groups.members()
    assert set(groups.hosts) == hosts_of(theirs) | set(hosts)
    for host, settings in groups.settle(ansible._USED).items():
        ours = {key: setting.value for key, setting in settings.items()}
        wanted = {k: v for k, v in hosts.get(host, {}).items() if k in ansible._USED}
        assert texts(ours) == texts(wanted), host
    for group in groups.groups:
        below = theirs.get(group, {})
        direct = set(groups.groups[group].hosts) - (
            {*()} if group != "ungrouped" else grouped(groups)
        )
        if group not in ("all", "ungrouped"):
            assert direct == set(below.get("hosts", [])), group
            assert set(groups.groups[group].children) == set(below.get("children", [])), group
    assert members["ungrouped"] == set(theirs.get("ungrouped", {}).get("hosts", []))


def hosts_of(listing: dict[str, Any]) -> set[str]:
    return {
        host
        for name, group in listing.items()
        if name != "_meta"
        for host in group.get("hosts", [])
    }


def grouped(groups: Groups) -> set[str]:
    return {
        host
        for name, g in groups.groups.items()
        if name not in ("all", "ungrouped")
        for host in g.hosts
    }


def texts(values: dict[str, Any]) -> dict[str, str]:
    plain = {
        key: value.get("__ansible_unsafe", value) if isinstance(value, dict) else value
        for key, value in values.items()
    }
    return {key: str(value) for key, value in plain.items() if value is not None}


@real_ansible
@pytest.mark.parametrize("name", REFUSED)
def test_files_that_ansible_refuses_are_refused(listings: dict[str, Any], name: str) -> None:
    assert isinstance(listings[name], str), "a story that Ansible takes"
    with pytest.raises(UserError) as caught:
        ansible.read_ansible(REFUSED[name], Path(name))
    assert caught.value.problems[0].startswith(name)
