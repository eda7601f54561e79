-- The seal: an envelope for each record, under the record's own id, and the chains they belong to.
--
-- The envelope's other fields are those of the record and its run. A row with a note is the journal's own (a chain was opened, a
-- key changed, runs were archived, payloads erased, a break acknowledged): it takes an id in the same order and has no
-- record. Ids have no gaps; `archived` says which ranges retention took, and the seal of the last row of each.
--
-- Cost rule: appended by rowid like the record, and no index but over the few own rows.

CREATE TABLE chain (
  epoch INTEGER PRIMARY KEY,
  boot  TEXT NOT NULL
) STRICT;

CREATE TABLE envelope (
  id          INTEGER PRIMARY KEY,
  epoch       INTEGER NOT NULL,
  key         TEXT    NOT NULL,
  effect      TEXT    NOT NULL,
  destination TEXT    NOT NULL,
  route       TEXT    NOT NULL,
  producer    TEXT    NOT NULL,
  salt        BLOB,
  digest      BLOB    NOT NULL,
  mac         BLOB    NOT NULL,
  note        BLOB
) STRICT;

CREATE INDEX envelope_own ON envelope (id) WHERE note IS NOT NULL;

CREATE TABLE archived (
  first INTEGER PRIMARY KEY,
  last  INTEGER NOT NULL,
  mac   BLOB    NOT NULL
) STRICT;

CREATE INDEX caller_key_stream ON caller_key (stream);

DROP TRIGGER record_is_final;

CREATE TRIGGER record_is_final BEFORE UPDATE ON record
WHEN NEW.id <> OLD.id OR NEW.stream <> OLD.stream OR NEW.n <> OLD.n OR NEW.kind <> OLD.kind OR NEW.at <> OLD.at
  OR NOT EXISTS (SELECT 1 FROM envelope WHERE id = OLD.id AND salt IS NULL)
BEGIN
  SELECT RAISE (ABORT, 'a record is never changed');
END;
