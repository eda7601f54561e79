-- The log, the heads beside it, callers' keys, remembered values, constants.
--
-- Cost rules: a record is appended by rowid and carries one index whose keys grow with time; random keys (stream names,
-- callers' keys) are paid for once a run or only by those who bring them; a head is one row, found by name, kept in order of
-- change. Later columns of a record (the sealed envelope) come in a table of their own keyed by record.id, or as new columns.

PRAGMA application_id = 1398229580; -- 'SWJL'

CREATE TABLE head (
  id         INTEGER PRIMARY KEY,
  name       TEXT    NOT NULL UNIQUE,
  version    INTEGER NOT NULL,
  state      TEXT    NOT NULL,
  is_open    INTEGER NOT NULL,
  agent      TEXT    NOT NULL,
  opened_at  INTEGER NOT NULL,
  changed_at INTEGER NOT NULL
) STRICT;

CREATE INDEX head_open ON head (name) WHERE is_open = 1;
CREATE INDEX head_changed ON head (changed_at);
CREATE INDEX head_state ON head (state, changed_at);

CREATE TABLE record (
  id     INTEGER PRIMARY KEY,
  stream INTEGER NOT NULL REFERENCES head (id),
  n      INTEGER NOT NULL,
  kind   TEXT    NOT NULL,
  at     INTEGER NOT NULL,
  data   BLOB    NOT NULL
) STRICT;

CREATE UNIQUE INDEX record_stream ON record (stream, n);

CREATE TRIGGER record_is_final BEFORE UPDATE ON record
BEGIN
  SELECT RAISE (ABORT, 'a record is never changed');
END;

CREATE TABLE caller_key (
  digest     BLOB    PRIMARY KEY,
  stream     INTEGER NOT NULL REFERENCES head (id),
  step       INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE note (
  name  TEXT PRIMARY KEY,
  value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
