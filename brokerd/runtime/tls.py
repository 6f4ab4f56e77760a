"""Mutual TLS 1.3 on the links of brokers and clients.

Encryption and decryption are plain calls that never wait, so that a connection can continue to
write directly to its socket, and reads a whole chunk of records per turn of the loop. Both ends
must show a certificate issued by the deployment's authority; the certificate, not the dialled
address, identifies the peer.
"""

import hashlib
import ipaddress
import os
import ssl
import stat
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import trio

from brokerd.config import TlsFiles
from brokerd.errors import ConfigError
from brokerd.sessions.messages import Identity, Role

HANDSHAKE_LIMIT_BYTES: Final = 16 << 10
"""Most bytes that are read from the other end before its certificate is shown."""
HANDSHAKE_RECEIVE_BYTES: Final = 4_096
RECORD_BYTES: Final = 16 << 10


class TlsError(ConnectionError):
    """A failure to establish a trustworthy connection; the text states the reason."""


class CertificateRefused(TlsError):
    """A certificate, or TLS itself, that one end refuses: the same attempt fails again."""


_OTHER_AUTHORITY: Final = "another authority issued it"
_ALERTS: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": _OTHER_AUTHORITY,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it has expired, or the clocks differ",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it is revoked",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it is damaged, or is not valid yet",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it is of another kind",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it is not acceptable",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "there is none",
}
"""Reasons for which the other end refuses our certificate, by the library's name of the alert."""


_OBJECTIONS: Final = {
    9: "it is not valid yet, or the clocks differ",
    10: "it has expired, or the clocks differ",
    18: _OTHER_AUTHORITY,
    19: _OTHER_AUTHORITY,
    20: _OTHER_AUTHORITY,
    30: _OTHER_AUTHORITY,
}
"""Reasons for which a certificate of the other end is refused, by the library's X509_V_ERR code."""


class TlsCredentials:
    """The certificate and trust of one process.

    Raises:
        ConfigError: the files cannot be used; the text names file and reason.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._server: ssl.SSLContext
        self._client: ssl.SSLContext
        self._identity: Identity | None = None
        self._refusal_of_newer = ""
        self._read_ns = _modification_ns(files)
        self._server, self._client = self._read()

    def _read(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Return the contexts of the accepting and of the opening end, from the files."""
        _check_access(self._files)
        server = _context(self._files, ssl.PROTOCOL_TLS_SERVER)
        # No tickets: sessions are never resumed here, and tickets would be written unasked.
        server.num_tickets = 0
        return server, _context(self._files, ssl.PROTOCOL_TLS_CLIENT)

    def check(self, role: Role, name: str, deployment: str) -> None:
        """Check that peers with the same authority accept the certificate for a member.

        Args:
            deployment: the deployment id; empty if the member does not require one.

        Raises:
            ConfigError: the certificate is of another authority, member or deployment, has expired
                or is not valid yet; the text names the file.
        """
        self._refresh()
        if self._identity is None:
            self._identity = _verify_own(self._files, self._server)
        identity = self._identity
        why = identity.refuses(role, name, deployment or identity.deployment)
        if why is not None:
            raise _unusable(self._files, why)

    def reload(self) -> str:
        """Read the files again, for new connections; existing connections continue.

        Returns:
            the SHA-256 of the certificate that is shown from now on.

        Raises:
            ConfigError: the files cannot be used; the earlier credentials stay.
        """
        changed_ns = _modification_ns(self._files)
        self._replace()
        self._read_ns = changed_ns
        pem = Path(self._files.certificate).read_text(encoding="ascii")
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()

    def _replace(self) -> None:
        """Load files that fit together; keep the earlier credentials otherwise."""
        server, client = self._read()
        self._identity = _verify_own(self._files, server)
        self._server, self._client = server, client

    def _refresh(self) -> None:
        """Load a renewed certificate; keep the earlier credentials if the new ones are invalid."""
        changed_ns = _modification_ns(self._files)
        self._refusal_of_newer = ""
        if changed_ns != self._read_ns:
            try:
                self._replace()
                self._read_ns = changed_ns
            except ConfigError as error:  # perhaps only one of the files is written yet
                self._refusal_of_newer = f"; newer files are not in use: {error}"

    async def welcome(self, transport: trio.abc.Stream) -> "TlsStream":
        """Return the accepting end of a connection; `transport` is closed on failure.

        Raises:
            TlsError: the other end has no certificate of the authority, or does not support TLS
                1.3.
        """
        self._refresh()
        return await _shake_hands(transport, self._server, server_side=True)

    async def dial(self, transport: trio.abc.Stream) -> "TlsStream":
        """Return the opening end of a connection; `transport` is closed on failure.

        A return does not imply that the other end accepts this end's certificate: a refusal shows
        in the first exchange.

        Raises:
            CertificateRefused: the other end has no certificate of the authority.
            TlsError: the other end does not support TLS 1.3, or has closed.
        """
        self._refresh()
        try:
            return await _shake_hands(transport, self._client, server_side=False)
        except CertificateRefused as error:
            raise CertificateRefused(f"{error}{self._refusal_of_newer}") from error


@lru_cache(maxsize=16)
def credentials_of(files: TlsFiles) -> TlsCredentials:
    """Return the credentials in these files, read once for all clients of a process."""
    return TlsCredentials(files)


class TlsStream(trio.abc.Stream):
    """A stream of records on another stream; made by TlsCredentials.

    One task may read and one write, and the results of `encrypt` must reach the transport in the
    order in which they were returned.

    Attributes:
        transport: the stream that carries the records.
        identity: identity in the certificate of the other end.
        is_ended: True if the other end has announced the end of its data.
    """

    identity: Identity

    def __init__(
        self, transport: trio.abc.Stream, context: ssl.SSLContext, *, server_side: bool
    ) -> None:
        self.transport = transport
        self.is_ended = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._records = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)

    def encrypt(self, data: bytes) -> bytes:
        """Return the records that carry `data`, to be written to the transport next."""
        if not data:
            return b""  # the library would treat an empty write as the end
        written = self._records.write(data)
        if written < len(data):
            view = memoryview(data)
            while written < len(data):
                written += self._records.write(view[written:])
        return self._outgoing.read()

    def decrypt(self, chunk: bytes) -> bytes:
        """Return the data that `chunk`, the next bytes of the transport, completes; may be empty.

        Raises:
            TlsError: the records were tampered with.
        """
        self._incoming.write(chunk)
        records, incoming = self._records, self._incoming
        pieces: list[bytes] = []
        try:
            while incoming.pending or records.pending():
                piece = records.read(RECORD_BYTES)
                if not piece:
                    self.is_ended = True
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass  # the last record is not complete
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        except ssl.SSLError as error:
            raise _failure_of(error) from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def handshake(self, beginning: bytes = b"") -> None:
        """Exchange certificates and agree on keys.

        Args:
            beginning: bytes that have arrived already.

        Raises:
            TlsError: one end does not accept the other.
        """
        taken = len(beginning)
        self._incoming.write(beginning)
        while True:
            try:
                self._records.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._send_pending()
                chunk = await self.transport.receive_some(HANDSHAKE_RECEIVE_BYTES)
                taken += len(chunk)
                if not chunk:
                    raise TlsError("closed during the handshake") from None
                if taken > HANDSHAKE_LIMIT_BYTES:
                    raise TlsError(
                        f"{taken} bytes and no end of the handshake; "
                        f"at most {HANDSHAKE_LIMIT_BYTES}"
                    ) from None
                self._incoming.write(chunk)
            except ssl.SSLError as error:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._send_pending()  # the alert with the reason for the other end
                raise _failure_of(error) from error
        await self._send_pending()
        self.identity = self._read_identity()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.transport.send_all(self.encrypt(bytes(data)))

    async def wait_send_all_might_not_block(self) -> None:
        await self.transport.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return all received data: `max_bytes` bounds the read of the transport."""
        data = self.decrypt(b"")
        while not data and not self.is_ended:
            chunk = await self.transport.receive_some(max_bytes)
            if not chunk:
                return b""
            data = self.decrypt(bytes(chunk))
        return data

    async def aclose(self) -> None:
        """Close the transport, without a TLS close: frames themselves show if they are whole."""
        await self.transport.aclose()

    async def _send_pending(self) -> None:
        if self._outgoing.pending:
            await self.transport.send_all(self._outgoing.read())

    def _read_identity(self) -> Identity:
        try:
            return _identity_in(self._records.getpeercert())
        except CertificateRefused as error:
            raise CertificateRefused(f"the other end's certificate: {error}") from None


def transport_of(stream: trio.abc.Stream) -> trio.abc.Stream:
    """Return the stream that carries the bytes of a stream."""
    return stream.transport if isinstance(stream, TlsStream) else stream


def identity_of(stream: trio.abc.Stream) -> Identity | None:
    """Return the identity in the certificate of the peer of a stream; None without TLS."""
    return stream.identity if isinstance(stream, TlsStream) else None


def is_loopback(address: str) -> bool:
    """Return True if "host:port" can be reached from this machine only."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _shake_hands(
    transport: trio.abc.Stream, context: ssl.SSLContext, *, server_side: bool
) -> TlsStream:
    try:
        # Most connections of a flood send nothing: the state of a handshake is made once it begins.
        beginning = await transport.receive_some(HANDSHAKE_RECEIVE_BYTES) if server_side else b""
        if server_side and not beginning:
            raise TlsError("closed during the handshake")
        stream = TlsStream(transport, context, server_side=server_side)
        await stream.handshake(bytes(beginning))
    except BaseException as error:
        # A failed end must close: the other end may be waiting for ever.
        await trio.aclose_forcefully(transport)
        if isinstance(error, trio.BrokenResourceError):
            raise TlsError("closed during the handshake") from error
        raise
    return stream


def _identity_in(certificate: Mapping[str, Any] | None) -> Identity:
    """Return the identity in a verified certificate.

    Raises:
        CertificateRefused: it does not name one member of a deployment.
    """
    names = (certificate or {}).get("subjectAltName", ())
    if len(names) != 1 or names[0][0] != "URI":
        raise CertificateRefused("it does not name one member of a deployment")
    try:
        return Identity.from_uri(str(names[0][1]))
    except ValueError as error:
        raise CertificateRefused(str(error)) from None


def _modification_ns(files: TlsFiles) -> tuple[int, ...]:
    try:
        names = (files.authority, files.certificate, files.key)
        return tuple(Path(name).stat().st_mtime_ns for name in names)
    except OSError:
        return ()


def _context(files: TlsFiles, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    _load_authority(context, "authority", files.authority)
    try:
        # An encrypted key would ask for its passphrase on the terminal.
        context.load_cert_chain(files.certificate, files.key, password=_refuse_passphrase)
    except (OSError, ssl.SSLError, ValueError) as error:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            reason = f"not the key of certificate = {files.certificate!r}"
        else:
            # A throwaway context shows whether the certificate is the damaged file.
            _load_authority(ssl.SSLContext(protocol), "certificate", files.certificate)
            reason = _words_of_pem(error, "private key")
        raise ConfigError(f"tls: key = {files.key!r}: {reason}{_AGAIN}") from None
    return context


def _load_authority(context: ssl.SSLContext, subject: str, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        reason = _words_of_pem(error, "certificate")
        raise ConfigError(f"tls: {subject} = {path!r}: {reason}{_AGAIN}") from None


_AGAIN: Final = "; write the three files again, from one issue (`pubsubctl certificate`)"


def _words_of_pem(error: Exception, content: str) -> str:
    """Return the reason for which a PEM file cannot be loaded, for people."""
    if isinstance(error, ssl.SSLError) and error.reason in _NO_PEM:
        return f"no {content} in PEM, or cut short"
    return _words(error)


_NO_PEM: Final = (None, "NO_CERTIFICATE_OR_CRL_FOUND")
"""The library's reasons for a file without the wanted content; a weak key has another reason."""


def _check_access(files: TlsFiles) -> None:
    """Check that others can neither read the key nor replace one of the files.

    Raises:
        ConfigError: they can, or a file is missing; the text names the file or its folder.
    """
    for subject in ("authority", "certificate", "key"):
        path = Path(getattr(files, subject))
        place = f"tls: {subject} = {str(path)!r}"
        try:
            found = path.stat()
            folders = {each: each.stat() for each in (path.parent, path.resolve().parent)}
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"{place}: {getattr(error, 'strerror', error)}") from None
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{place} is no file")
        if os.geteuid() and found.st_uid not in (os.geteuid(), 0):
            raise ConfigError(f"{place} belongs to another user; copy it to a file of your own")
        if subject == "key" and found.st_mode & 0o077:
            raise ConfigError(f"{place} is open to others; its mode must be 0600 (`chmod 600`)")
        if found.st_mode & stat.S_IWOTH:
            raise ConfigError(f"{place} can be changed by others (`chmod o-w`)")
        for folder, status in folders.items():
            if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
                raise ConfigError(
                    f"{place} can be replaced by others: folder {folder} has mode "
                    f"{stat.S_IMODE(status.st_mode):04o} (`chmod o-w`)"
                )


def _verify_own(files: TlsFiles, server: ssl.SSLContext) -> Identity:
    """Return the identity in the process's own certificate, after a handshake with itself.

    Raises:
        ConfigError: the process's own authority does not accept the certificate, or TLS 1.3 has no
            signatures of the key's kind.
    """
    client = _context(files, ssl.PROTOCOL_TLS_CLIENT)
    client.verify_mode = ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    opening = client.wrap_bio(back, there)
    accepting = server.wrap_bio(there, back, server_side=True)
    try:
        for end in (opening, accepting, opening, accepting):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
        return _identity_in(accepting.getpeercert())
    except ssl.SSLCertVerificationError as error:
        why = _OBJECTIONS.get(error.verify_code, error.verify_message)
    except ssl.SSLError as error:
        why = f"no handshake of TLS 1.3 is possible with its key: {_words(error)}"
    except CertificateRefused as error:
        why = str(error)
    raise _unusable(files, why)


def _unusable(files: TlsFiles, why: str) -> ConfigError:
    return ConfigError(
        f"tls: certificate = {files.certificate!r}: {why} (authority = {files.authority!r}); "
        "issue a new one: `pubsubctl certificate` for a client, `deploy` for a broker"
    )


def _refuse_passphrase() -> str:
    raise ValueError("the key is encrypted")


_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
"""The library's names for an answer that is no record of TLS."""


def _failure_of(error: ssl.SSLError) -> TlsError:
    """Return the failure for an error of the TLS library, in words."""
    if isinstance(error, ssl.SSLCertVerificationError) or error.reason in _ALERTS:
        return CertificateRefused(_words(error))
    if error.reason in _NO_TLS:
        return CertificateRefused(f"it does not answer with TLS ({_words(error)})")
    return TlsError(_words(error))


def _words(error: Exception) -> str:
    """Return the text of an error of the TLS library, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = _OBJECTIONS.get(error.verify_code, error.verify_message)
        return f"the other end's certificate is not accepted: {why}"
    if isinstance(error, ssl.SSLError) and error.reason in _ALERTS:
        return f"the other end does not accept our certificate: {_ALERTS[error.reason]}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)[:200]
