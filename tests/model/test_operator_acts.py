"""Tests of signatures of operators' acts: the vectors of RFC 8032, and the signed fields."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from brokerd.model.operator_acts import (
    ACCEPT_LOSS,
    DECOMMISSION,
    NO_AUTHORITY,
    ORDER,
    OperatorAct,
    OperatorAuthority,
    compress,
    decompress,
    is_signed,
)
from brokerd.simulator.world.broker_factory import AUTHORITY, make_signature, public_key, sign

VECTORS = (  # RFC 8032 §7.1, tests 1 to 3: secret, public key, message, signature
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
)


@pytest.mark.parametrize("vector", VECTORS, ids=["empty", "one byte", "two bytes"])
def test_the_vectors_of_the_rfc(vector) -> None:
    secret, public, message, signature = map(bytes.fromhex, vector)
    assert public_key(secret) == public
    assert sign(secret, message) == signature
    assert is_signed(public, message, signature)
    assert not is_signed(public, message + b"x", signature)


def test_signatures_of_the_controller_are_valid_here() -> None:
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    for length in (0, 1, 63, 64, 65, 1_000):
        message = bytes(range(256)) * 4
        assert is_signed(public, message[:length], key.sign(message[:length]))


def test_a_changed_bit_anywhere_makes_a_signature_invalid() -> None:
    _, public, message, signature = map(bytes.fromhex, VECTORS[2])
    for place in range(0, 512, 7):
        changed = bytearray(signature)
        changed[place // 8] ^= 1 << place % 8
        assert not is_signed(public, message, bytes(changed)), place
    for place in range(0, 256, 7):
        changed = bytearray(public)
        changed[place // 8] ^= 1 << place % 8
        assert not is_signed(bytes(changed), message, signature), place


def test_malformed_keys_and_signatures_are_invalid() -> None:
    _, public, message, signature = map(bytes.fromhex, VECTORS[2])
    scalar = int.from_bytes(signature[32:], "little") + ORDER
    malleable = signature[:32] + scalar.to_bytes(32, "little")
    neutral = compress((0, 1, 1, 0))
    assert decompress(b"\xff" * 32) is None
    for key, made in (
        (public, malleable),
        (public, signature[:63]),
        (public, signature + b"\0"),
        (public, b""),
        (b"", signature),
        (public[:31], signature),
        (b"\xff" * 32, signature),
        (public, b"\xff" * 64),
        (neutral, neutral + bytes(32)),
    ):
        assert not is_signed(key, message, made), (key, made)


def test_a_signature_is_bound_to_deployment_act_target_and_version() -> None:
    made = make_signature(DECOMMISSION, "b1", 3)
    assert AUTHORITY.has_signed(DECOMMISSION, "b1", 3, made)
    assert not AUTHORITY.has_signed(DECOMMISSION, "b1", 4, made)
    assert not AUTHORITY.has_signed(DECOMMISSION, "b2", 3, made)
    assert not AUTHORITY.has_signed(ACCEPT_LOSS, "b1", 3, made)
    other = OperatorAuthority("another deployment", AUTHORITY.public_key)
    assert not other.has_signed(DECOMMISSION, "b1", 3, made)
    assert not NO_AUTHORITY.has_signed(DECOMMISSION, "b1", 3, made)


def test_no_two_acts_have_the_same_statement() -> None:
    assert OperatorAct("ab", "c", "d", 0).statement() != OperatorAct("a", "bc", "d", 0).statement()
    assert OperatorAct("a", "b", "", 0).statement() != OperatorAct("a", "b", "\0", 0).statement()
