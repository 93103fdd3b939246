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
from functools import partial
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import AEADDecryptionContext, AEADEncryptionContext, Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

from mainstay.recovery.agent.errors import AgentGoneError, CorruptError
from mainstay.recovery.agent.framing import CHUNK, receive_some
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
        self._left = 0
        self._open: list[AEADEncryptionContext] = []
        """One a segment."""
        self._buffer: Bytes = np.empty(CHUNK if encrypted else 0, np.uint8)

    def send(self, data: Bytes) -> None:
        """Send the next bytes.

        Raises:
            AgentGoneError: the connection broke.
        """
        done = 0
        while done < len(data):
            if not self._left:
                self._open.append(_cipher(self.seal.key, len(self._open)).encryptor())
                self._left = SEGMENT
            part = data[done : done + min(CHUNK, self._left)]
            try:
                socket.socket.sendall(self._sock, self._sealed(part).data)
            except OSError as error:
                raise AgentGoneError(f"the connection broke while sending: {error}") from error
            done += len(part)
            self._left -= len(part)

    def tags(self) -> tuple[bytes, ...]:
        """Return the tags of all segments; nothing is sent after that."""
        for context in self._open:
            context.finalize()
        return tuple(context.tag for context in self._open)

    def _sealed(self, part: Bytes) -> Bytes:
        if not self.seal.encrypted:
            self._open[-1].authenticate_additional_data(part.data)
            return part
        sealed = self._buffer[: len(part)]
        self._open[-1].update_into(part.data, sealed.data)
        return sealed


class BulkReceiver:
    """The other side of a ``BulkSender``."""

    def __init__(self, sock: socket.socket, seal: TransferSeal) -> None:
        self._receive = partial(socket.socket.recv_into, sock)  # below TLS
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
            part = part[: receive_some(self._receive, part.data, done, len(out))]
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
