"""What somebody with the database in hand can do to it, from clumsy to careful. Used against the verifier."""

import random
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import msgspec

from agent_os.abi import entries
from agent_os.abi.entries import Entry
from agent_os.abi.heads import key_statement, parse_note
from agent_os.abi.tree import WIDTH, leaf_hash, pack_tile, root_of, tile_key
from agent_os.kernel.journal import Signer
from journals import database


class Forger:
    """A copy of a home, opened to be changed."""

    def __init__(self, home: Path, copy: Path, seed: int) -> None:
        shutil.copytree(home, copy, ignore=shutil.ignore_patterns("*-wal", "*-shm", "*.reserve"))
        self.home, self.path, self.chance = copy, database(copy), random.Random(seed)
        self.db = apsw.Connection(str(self.path))
        self.db.pragma("journal_mode", "delete")
        self.db.pragma("synchronous", "off")
        self.size: int = self.ask("select max(seq) from entries")

    def close(self) -> None:
        self.db.close()

    def ask(self, sql: str, *values: Any) -> Any:
        return self.db.execute(sql, values).get

    def do(self, sql: str, *values: Any) -> None:
        self.db.execute(sql, values)
        if not self.db.changes():
            raise AssertionError(f"the forgery did not take place: {sql}")

    def pick(self, where: str = "seq > 1") -> int:
        return self.chance.choice([seq for (seq,) in self.db.execute(f"select seq from entries where {where}")])

    def entry(self, seq: int) -> Entry:
        return entries.decode(self.ask("select entry from entries where seq = ?", seq))

    def put(self, seq: int, entry: Entry) -> None:
        """Write an entry's bytes and the columns beside it, all in agreement."""
        sql = "update entries set agent = ?, aseq = ?, entry = ? where seq = ?"
        self.do(sql, entry.agent, entry.aseq, entries.encode(entry), seq)

    def change_field(self, seq: int) -> None:
        entry = self.entry(seq)
        name, value = self.chance.choice(
            [
                ("code", entry.code + 1),
                ("verdict", (entry.verdict + 1) % 5),
                ("op", entry.op + 1),
                ("wall_ns", entry.wall_ns - 1),
                ("rule", entry.rule + "x"),
                ("label", [*entry.label, "public"]),
                ("cost", {"usd": 0}),
                ("isolation", "S4"),
                ("epoch", entry.epoch + 1),
                ("inc", entry.inc + 1),
                ("handle", entry.handle + 1),
                ("key", "other"),
            ]
        )
        self.put(seq, msgspec.structs.replace(entry, **{name: value}))

    def shift(self, first: int, by: int) -> None:
        """Renumber the rows from `first` on, in rows and entries, so that no number is missing."""
        for seq in sorted(range(first, self.size + 1), reverse=by > 0):
            entry = msgspec.structs.replace(self.entry(seq), seq=seq + by)
            self.do("update entries set seq = ?, entry = ? where seq = ?", seq + by, entries.encode(entry), seq)
        self.size += by

    def leaves(self) -> list[bytes]:
        return [leaf_hash(entry) for (entry,) in self.db.execute("select entry from entries order by seq")]

    def rebuild_tree(self) -> None:
        """Make every stored hash fit the entries again."""
        leaves = self.leaves()
        self.db.execute("delete from kv where bucket = 'tree'")
        row, level = leaves, 0
        while len(row) >= WIDTH:
            packed = [pack_tile(row[at : at + WIDTH]) for at in range(0, len(row) // WIDTH * WIDTH, WIDTH)]
            for index, (tile, _) in enumerate(packed):
                self.fact("tree", tile_key(level, index), tile)
            row, level = [root for _, root in packed], level + 1
        whole = len(leaves) // WIDTH
        self.fact("tree", "tail", whole.to_bytes(8) + b"".join(leaves[whole * WIDTH :]))

    def fact(self, bucket: str, key: str, value: bytes) -> None:
        self.do("insert or replace into kv (bucket, key, value) values (?,?,?)", bucket, key, value)

    def drop_heads_above(self, size: int) -> None:
        for key, note in self.db.execute("select key, value from kv where bucket = 'heads'").fetchall():
            if parse_note(note).head.size > size:
                self.do("delete from kv where bucket = 'heads' and key = ?", key)
        newest = self.ask("select value from kv where bucket = 'heads' order by key desc limit 1")
        self.db.execute("delete from kv where bucket = 'meta' and key = 'head'")
        if newest:
            self.fact("meta", "head", newest)

    def sign_again(self, signer: Signer) -> None:
        """Every head anew, over the entries as they are now, by a key of the forger's; the anchor as well."""
        leaves = self.leaves()
        notes: list[bytes] = []
        for key, note in self.db.execute("select key, value from kv where bucket = 'heads' order by key").fetchall():
            head = parse_note(note).head
            root = root_of(leaves[: head.size])
            notes.append(signer.note(msgspec.structs.replace(head, root=root, key_id=signer.key_id)))
            self.fact("heads", key, notes[-1])
        self.fact("meta", "head", notes[-1])
        (self.home / "anchor/heads").write_bytes(b"".join(notes))

    def bring_in_key(self, signer: Signer) -> None:
        """Replace the journal's first entry, which names its key."""
        log_id = self.ask("select value from kv where bucket = 'meta' and key = 'log_id'")
        signature = signer.sign(key_statement(log_id, 1, b"", signer.public))
        said = {"log_id": log_id, "old": b"", "new": signer.public, "by_old": b"", "by_new": signature}
        self.replace_body(1, msgspec.msgpack.encode(said))

    def replace_body(self, seq: int, body: bytes) -> None:
        self.put(seq, msgspec.structs.replace(self.entry(seq), body=sha256(body).digest()))
        self.do("update entries set body = ? where seq = ?", body, seq)

    def allow_null(self) -> None:
        """The tables again without their constraints."""
        for table in ("entries", "kv", "bodies"):
            self.db.execute(f"create table loose as select * from {table}; drop table {table}")
            self.db.execute(f"alter table loose rename to {table}")
