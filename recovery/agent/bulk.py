"""The raw bytes of a transfer: AES-128-GCM on the socket below TLS, with a new key for each transfer.

The ``ssl`` module moves 16 KiB a call and copies; in one pass over 1 MiB the same cipher is several times as fast
(``bench.transport``). The key comes in the header of the transfer and the tags in its tail, both through TLS, so these
bytes are as secret as the messages. Where a site turns encryption off they travel in the clear, and the tags
authenticate them (GMAC). Bytes count only after ``BulkReceiver.finish``.

Bytes below TLS do not disturb it: TLS reads whole records, and both sides know how many bytes come between two.
"""

from __future__ import annotations

import os
import socket
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import AEADDecryptionContext, AEADEncryptionContext, Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

from mainstay.recovery.agent.errors import AgentGoneError, CorruptError
from mainstay.recovery.agent.framing import CHUNK
from mainstay.recovery.agent.peer_messages import TransferSeal
from mainstay.recovery.memory.digest import Bytes

SEGMENT: Final = 1 << 30
"""Bytes under one nonce and tag. GCM allows 64 GiB (NIST SP 800-38D), and a slot may be larger."""
_KEY_BYTES: Final = 16


def _cipher(key: bytes, segment: int) -> Cipher[GCM]:
    return Cipher(AES(key), GCM(segment.to_bytes(12, "big")))


class BulkSender:
    """The bytes of one transfer. ``seal`` belongs into its header, ``tags`` into its tail."""

    def __init__(self, sock: socket.socket, *, encrypted: bool) -> None:
        self.seal = TransferSeal(key=os.urandom(_KEY_BYTES), encrypted=encrypted)
        self._sock = sock
        self._tags: list[bytes] = []
        self._left = 0
        self._context: AEADEncryptionContext | None = None
        self._buffer: Bytes = np.empty(CHUNK if encrypted else 0, np.uint8)

    def send(self, data: Bytes) -> None:
        """Send the next bytes.

        Raises:
            AgentGoneError: the connection broke.
        """
        for start in range(0, len(data), CHUNK):
            rest = data[start : start + CHUNK]
            while len(rest):
                context = self._next_context()
                part, rest = rest[: self._left], rest[self._left :]
                self._left -= len(part)
                self._send(self._sealed(context, part))

    def tags(self) -> tuple[bytes, ...]:
        """Return the tags of all segments; nothing is sent after that."""
        self._close_segment()
        return tuple(self._tags)

    def _sealed(self, context: AEADEncryptionContext, part: Bytes) -> Bytes:
        if not self.seal.encrypted:
            context.authenticate_additional_data(part.data)
            return part
        sealed = self._buffer[: len(part)]
        context.update_into(part.data, sealed.data)
        return sealed

    def _next_context(self) -> AEADEncryptionContext:
        if self._context is None or not self._left:
            self._close_segment()
            self._context = _cipher(self.seal.key, len(self._tags)).encryptor()
            self._left = SEGMENT
        return self._context

    def _close_segment(self) -> None:
        if self._context is not None:
            self._context.finalize()
            self._tags.append(self._context.tag)
            self._context = None

    def _send(self, data: Bytes) -> None:
        try:
            socket.socket.sendall(self._sock, data.data)
        except OSError as error:
            raise AgentGoneError(f"the connection broke while sending: {error}") from error


class BulkReceiver:
    """The other side of a ``BulkSender``."""

    def __init__(self, sock: socket.socket, seal: TransferSeal) -> None:
        self._sock = sock
        self._seal = seal
        self._left = 0
        self._open: list[AEADDecryptionContext] = []
        """One a segment; their tags come at the end."""

    def receive_into(self, out: Bytes) -> None:
        """Fill ``out`` (uint8), straight from the kernel, and decrypt it there.

        Raises:
            AgentGoneError: the connection broke.
        """
        done = 0
        while done < len(out):
            if not self._left:
                self._open.append(_cipher(self._seal.key, len(self._open)).decryptor())
                self._left = SEGMENT
            part = out[done : done + min(CHUNK, self._left)]
            part = part[: self._receive(part.data, done, len(out))]
            if self._seal.encrypted:
                self._open[-1].update_into(part.data, part.data)
            else:
                self._open[-1].authenticate_additional_data(part.data)
            done += len(part)
            self._left -= len(part)

    def finish(self, tags: tuple[bytes, ...]) -> None:
        """Check that all bytes are those that were sent.

        Raises:
            CorruptError: they are not, and are worthless.
        """
        try:
            for context, tag in zip(self._open, tags, strict=True):
                context.finalize_with_tag(tag)
        except (InvalidTag, ValueError) as error:
            raise CorruptError(
                "the bytes that came are not those that were sent: they were changed on the way"
            ) from error

    def _receive(self, part: memoryview, done: int, size: int) -> int:
        try:
            count = socket.socket.recv_into(self._sock, part)
        except OSError as error:
            raise AgentGoneError(f"the connection broke while receiving: {error}") from error
        if not count:
            raise AgentGoneError(f"the other side closed the connection ({done} of {size} bytes came)")
        return count
