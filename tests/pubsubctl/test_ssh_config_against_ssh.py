"""Stories about ssh configurations: the importer resolves each host as `ssh -G` does.

The expected values are those of the installed `ssh`. A part of the configurations is drawn from a
printed seed.
"""

import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from pubsubctl.errors import UserError
from pubsubctl.hosts.ssh.client_config import ClientConfig
from pubsubctl.hosts.ssh.config_syntax import local_user
from pubsubctl.hosts.ssh.host_settings import HostSettings
from pubsubctl.inventory.importers.findings import inventory_text
from pubsubctl.inventory.importers.ssh_config import read_ssh_config
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ssh_program import OLDEST, resolve_hosts, ssh_version

SEED = 20_261_128
GENERATED = 24
OTHER_BLANKS = "\f\v\xa0\u2003"
"""Blanks that ssh reads as letters."""


real_ssh = pytest.mark.skipif(
    ssh_version() < OLDEST, reason="needs the program ssh of OpenSSH 8.7 or later"
)

CONFIGURATIONS = [
    "Host n1\n  HostName 10.0.0.1\n  Port 2222\n  User lab\n",
    "Host n1\n  Port 2222 # moved\n  User lab # mine\n  HostName gw # in\n",
    "Host n1 # a comment\n  Port 8\nHost n2#x n1\n  User x\n",
    "Host=n1\nPort=2022\nUser = x\nHostName\t=\tb.example\n",
    'Host "n1" n2\nUser "x"\nIdentityFile "~/a b"\n',
    "Host n1\nUser 'x'\nIdentityFile '~/key one'\nIdentityFile ~/key\\ two\n",
    "Host n1\nHostName %h.lab.example\n",
    "Host N1\nHostName %h.Lab.Example\n",
    "Host n1\nHostName %%h.lab\n",
    "Host n1\nHostName 10.0.0.%h\nHost 7\nHostName 10.0.0.%h\n",
    "Host n1\nPort 1\nHost n*\nPort 2\nUser a\nHost *\nUser b\nPort 3\n",
    "Host * !n1\nUser a\nHost n1 n2\nUser b\n",
    "Host n? !n2\nUser a\nHost n1 n2 nn\nPort 9\n",
    "Host n[12] n1\nUser a\nHost n2\nUser b\n",
    "User first\nHost n1\nUser second\nPort 5\n",
    "Host n1\nIdentityFile ~/.ssh/a\nIdentityFile ~/.ssh/b\nHost *\nIdentityFile ~/.ssh/c\n",
    "Host n1\nIdentityFile ~/.ssh/a\nIdentityFile ~/.ssh/a\nHost n*\nIdentityFile ~/.ssh/a\n",
    "Host n1\nIdentityFile none\nHost n2\nIdentityFile ~/.ssh/a\n",
    "Host n1\nIdentityFile %d/.ssh/id_%u\nUser r\n",
    "Host n1\nIdentityFile ${HOME}/.ssh/%n_%p_%r_%h\nUser r\nPort 7\nHostName h.x\n",
    "Host n1\nProxyJump gw\nHost gw\nUser jumper\nPort 2200\nHostName gw.example\n",
    "Host n1\nProxyJump gw # the gate\nHost gw\nUser jumper\n",
    "Host n1\nProxyJump ops@edge.example:2200,gw\nHost gw\nPort 4\n",
    "Host n1\nProxyJump ssh://ops@edge.example:2200\n",
    "Host n1\nProxyJump u@[fd00::1]:22\n",
    "Host n1\nProxyJump none\nHost *\nProxyJump gw\n",
    "Host n1\nProxyCommand none\nHost *\nProxyJump gw\n",
    "Host n1\nProxyCommand none\nHost *\nProxyCommand ssh -W %h:%p gw\n",
    "Host n1\nProxyJump none\nHost *\nProxyCommand ssh -W %h:%p gw\n",
    "Host n1\nProxyJump NONE\nHost n*\nProxyJump gw\n",
    "Host n1\nProxyJump gw\nProxyCommand ssh -W %h:%p other\n",
    "Host n1\nProxyCommand ssh -W %h:%p other\nProxyJump gw\n",
    "Host n1\nProxyCommand=ssh -q -W [%h]:%p gw\n",
    "Host n1\nProxyCommand ssh -W %h:%p gw # with a comment\n",
    "Match all\nUser x\nHost n1\nPort 3\n",
    "Host n1\nHostName a.x\nMatch host a.x\nUser x\nMatch originalhost n1\nPort 3\n",
    "Host n1\nHostName a.x\nMatch host n1\nUser x\n",
    "Match originalhost n1,n2 !host n2\nUser x\nHost n1 n2\nPort 9\n",
    'Match host "n1" user nobody-here\nUser x\nHost n1\nPort 9\n',
    "Host n1\nUser a\nMatch user a\nPort 3\nMatch user b\nPort 4\n",
    f"Match localuser {local_user()} host n1\nPort 3\nHost n1\nUser x\n",
    "Match host n*,!n2\nPort 3\nHost n1 n2\nUser x\n",
    "Match !host n2\nPort 8\nHost n1 n2\nUser x\n",
    "Match host=n1\nPort 8\nHost n1\nUser x\n",
    "Host n1\nHostName n1.x\nHost n1.x\nPort 7\nMatch final\nUser u\n",
    "Host n1\nHostName n1.x\nMatch final host n1.x\nPort 7\n",
    (
        "Host n1\nUser a\nIdentityFile ~/a\nMatch canonical\nUser b\nMatch final all\n"
        "IdentityFile ~/c\n"
    ),
    "CanonicalizeHostname yes\nHost n1\nHostName 10.0.0.1\nHost 10.0.0.1\nPort 9\n",
    "CanonicalizeHostname no\nHost n1\nHostName n1.x\nHost n1.x\nPort 9\n",
    "Host n1\n\tUser x\r\n\tPort 5\r\nHost n2\r\nUser y\r\n",
    "  # comment\n\n\t\nHost n1\n   User x   \n# Port 7\n",
    "HOST n1\nhostname a\nPORT 6\nuSeR x\n",
    "Host n1\nForwardAgent yes\nServerAliveInterval 30\nUser x\nStrictHostKeyChecking no\n",
    "Host n1\nHostName fd00::7\nPort 022\n",
    "Host n1\nHostName FD00::7\n",
    "Host n1\nPort ssh\n",
    "Host n1\nPort 65535\nHost n2\nPort 1\n",
    "Host a.b.c n1\nUser x\nHost *.b.*\nPort 9\nHost ?.b.c\nHostName q\n",
    "Host n1\nUser x\nLocalCommand echo %h\nRemoteCommand uptime\nPermitLocalCommand no\n",
    "Host n1 !n1\nUser a\nHost n1\nUser b\n",
    "Host n1\nIdentityFile ~/a\\\\b\nUser \\x\n",
]


def generated(seed: int) -> str:
    """Return a configuration of nested patterns, drawn from a seed."""
    draw = random.Random(seed)
    names = ["n1", "n2", "web1", "db.lab"]
    patterns = [*names, "*", "n*", "?1", "!n2", "*.lab", "!web*", "n?"]
    lines = []
    for _ in range(draw.randint(2, 7)):
        kind = draw.random()
        if kind < 0.7:
            lines.append(f"Host {' '.join(draw.sample(patterns, draw.randint(1, 3)))}")
        elif kind < 0.9:
            criterion = draw.choice(["host", "originalhost", "!host", "user", "!user"])
            values = ["a", "b", local_user()] if "user" in criterion else ["n*", "n1,db*", "x.*"]
            lines.append(f"Match {criterion} {draw.choice(values)}")
        else:
            lines.append(draw.choice(["Match all", "Match final", "Match !final host x.n1"]))
        for _ in range(draw.randint(1, 5)):
            lines.append(
                draw.choice(
                    [
                        f"  Port {draw.randint(1, 9)}",
                        f"  User {draw.choice('ab')} # theirs",
                        f"  HostName {draw.choice(['x.%h', '10.0.0.9', '%h.lab'])}",
                        f"  IdentityFile ~/.ssh/{draw.choice('abc')}",
                        "  IdentityFile " + draw.choice(["%d/k", '"~/a b"', "%u", "none"]),
                        f"  ProxyJump {draw.choice(['gw', 'none', 'o@gw:5', 'a,b'])}",
                        f"  ProxyCommand {draw.choice(['none', 'ssh -W %h:%p gw', 'nc %h %p'])}",
                        "  ForwardAgent yes",
                    ]
                )
            )
    return "\n".join([*lines, f"Host {' '.join(names)}", "  Compression yes", ""])


def by_ssh(config: Path, name: str) -> dict[str, list[str]]:
    return resolve_hosts(config, name)


def filled(text: str, settings: HostSettings) -> str:
    """Return a path of `ssh -G`, with its tokens filled in."""
    tokens = {
        "%d": os.environ["HOME"],
        "%u": local_user(),
        "%r": settings.user or local_user(),
        "%h": settings.hostname,
        "%n": settings.alias,
        "%p": str(settings.port or 22),
        "${HOME}": os.environ["HOME"],
    }
    for token, value in tokens.items():
        text = text.replace(token, value)
    return os.path.expanduser(text)


@real_ssh
@pytest.mark.parametrize(
    "text",
    [
        *CONFIGURATIONS,
        *(pytest.param(generated(SEED + n), id=f"seed-{SEED + n}") for n in range(GENERATED)),
    ],
    ids=lambda text: repr(text[:40]),
)
def test_a_configuration_is_resolved_as_by_ssh(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text, newline="")
    config = ClientConfig(text, path)
    assert config.names(), "a story without a host"
    for name in config.names():
        wanted = by_ssh(path, name)
        settings = config.settings(name)
        assert settings.hostname == wanted["hostname"][0]
        assert (settings.port or 22) == int(wanted["port"][0])
        assert (settings.user or local_user()) == wanted["user"][0]
        paths = [filled(key, settings) for key in wanted["identityfile"] if key != "none"]
        if settings.identities or not any("id_rsa" in key for key in paths):
            assert [os.path.expanduser(key) for key in settings.identities] == paths
        proxy = settings.proxy
        jump = wanted.get("proxyjump", [None])[0]
        command = wanted.get("proxycommand", [None])[0]
        if proxy is None or proxy.text.lower() == "none":
            assert (jump, command) == (None, None)
        elif proxy.is_jump:
            assert (proxy.text.replace("ssh://", ""), command) == (jump, None)
        else:
            assert (jump, proxy.text) == (None, command)


@real_ssh
def test_tokens_of_keys_are_filled_in_as_by_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYS", "/some/keys")
    text = (
        "Host n1\nHostName h.example\nPort 7\nUser them\nHostKeyAlias k\n"
        'IdentityFile %d/.ssh/id_%u\nIdentityFile "~/a b"\nIdentityFile ${KEYS}/%n-%h-%p-%r-%%\n'
        "IdentityFile /x/%i-%L-%l\nIdentityFile ~/${KEYS}/c\n"
    )
    path = tmp_path / "config"
    path.write_text(text)
    # ssh prints the keys after the start of a proxy, which sends no greeting.
    done = subprocess.run(
        ["ssh", "-v", "-F", path, "-o", "ProxyCommand=true", "n1"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    theirs = re.findall(r"identity file (.*) type -1", done.stderr)
    theirs = [key for key in theirs if not key.endswith("-cert")]
    assert theirs, done.stderr
    ours = ClientConfig(text, path).settings("n1").identities
    assert [os.path.expanduser(key) for key in ours] == theirs


@real_ssh
@pytest.mark.parametrize(
    "text",
    [
        "Host n1\nPort x\n",
        "Host n1\nPort 0\n",
        "Host n1\nPort 65536\n",
        "Host n1\nUser a b\n",
        "Host n1\nHostName a b\n",
        "Host n1\nHostName %k\n",
        "Host n1\nIdentityFile ~/a b\n",
        'Host n1\nIdentityFile "~/a\n',
        "Host n1\nUser # nobody\n",
        "Host n1\nUser\n",
        "Host\n",
        "Host n1\nProxyJump gw:0\n",
        "Host n1\nProxyJump fd00::1\n",
        "Host n1\nProxyJump n1\n",
        "Match nonsense x\nPort 1\nHost n1\n",
        "Match host\nPort 1\nHost n1\n",
        'Host ""\nPort 2\nHost n1\n',
        'Host n1\n"Port" = 2\n',
        *(f"Host n1\n{blank}Port 2\n" for blank in OTHER_BLANKS),
        *(f"Host n1\nPort{blank}2\n" for blank in OTHER_BLANKS),
        *(f"Host n1\n {blank}# a comment\n" for blank in OTHER_BLANKS),
        *(f"Host n1\n{blank}\n" for blank in OTHER_BLANKS),
    ],
)
def test_a_mistake_that_ssh_refuses_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    done = subprocess.run(
        ["ssh", "-G", "-F", path, "n1"], capture_output=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode != 0
    with pytest.raises(UserError) as caught:
        inventory_text(read_ssh_config(text, path), "lab", path)
    assert f"{path}" in caught.value.problems[0]
