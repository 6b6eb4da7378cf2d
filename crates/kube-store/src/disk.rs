//! The durable copy: one redb database with a table of objects, the last revision, and a tally of the objects.

use std::borrow::Borrow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, TableError,
    WriteTransaction,
};

use super::medium::{Medium, Place};
use super::row::{self, Tally};
use super::{Key, Object, OpenError};

/// See [`row`].
const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");
/// The words below, with a number each.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// The last revision assigned.
const REVISION: &str = "revision";
/// What the rows look like; files of the first format do not say.
const FORMAT: &str = "format";
const ROWS: &str = "rows";
const SUM: &str = "sum";

/// The format written.
const CURRENT: u64 = 2;
/// What a new store begins with.
pub(super) const FIRST: u64 = 1;

/// See the module.
#[derive(Debug)]
pub(super) struct Disk {
    medium: Box<dyn Medium>,
    /// None while it cannot be opened again after a failure.
    database: Option<Database>,
    /// As the last transaction left it.
    header: Header,
    /// The database contradicted itself; nothing is written to it any more.
    damaged: bool,
}

/// One line of a transaction.
pub(super) struct Row<'a> {
    pub(super) key: &'a Key,
    /// None removes.
    pub(super) object: Option<&'a Object>,
}

/// Why nothing of a transaction is kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommitError {
    #[error("the database refused the transaction")]
    Database(#[source] Box<redb::Error>),
    #[error("the file could not be synchronised and is not written to before a restart")]
    Distrusted,
    #[error("the file is damaged and is not written to any more")]
    Damaged,
    #[error("the file holds a transaction that was reported as failed; a restart takes it up")]
    Ahead,
}

impl<E: Into<redb::Error>> From<E> for CommitError {
    fn from(error: E) -> Self {
        Self::Database(Box::new(error.into()))
    }
}

/// What a file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    revision: u64,
    tally: Tally,
}

impl Disk {
    /// Opens the store in `dir`, made if there is none, and reads all of it.
    pub(super) fn open(dir: &Path) -> Result<(Self, Vec<Object>), OpenError> {
        Self::attach(Box::new(Place::open(dir, |database| begin(&database, FIRST))?))
    }

    /// The same on a medium that has a store.
    pub(super) fn attach(medium: Box<dyn Medium>) -> Result<(Self, Vec<Object>), OpenError> {
        let name = medium.name();
        let read = || -> Result<_, OpenError> {
            let database = medium.attach().map_err(|error| OpenError::of(&name, error.into()))?;
            let (header, objects) = load(&database, &name)?;
            let promised = medium.promised();
            if header.revision < promised {
                let what =
                    format!("it ends with revision {}, and revision {promised} was acknowledged", header.revision);
                return Err(OpenError::damaged(&name, &what));
            }
            Ok((database, header, objects))
        };
        // On some damaged pages the database ends in a panic.
        let outcome = catch_unwind(AssertUnwindSafe(read));
        let (database, header, objects) =
            outcome.unwrap_or_else(|_| Err(OpenError::damaged(&name, "its pages contradict one another")))?;
        Ok((Self { medium, database: Some(database), header, damaged: false }, objects))
    }

    /// The last revision assigned.
    pub(super) fn revision(&self) -> u64 {
        self.header.revision
    }

    /// Makes the rows durable, all or none. When this returns Ok they survive a power cut; else none of them is there,
    /// or nothing is accepted any more before a restart.
    pub(super) fn commit(&mut self, revision: u64, rows: &[Row<'_>]) -> Result<(), CommitError> {
        let database = match self.database.take() {
            Some(database) => database,
            None => {
                let (database, found) = self.again()?;
                if found != self.header {
                    return Err(CommitError::Ahead);
                }
                database
            }
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| match write(&database, revision, self.header.tally, rows) {
            Ok(tally) => Ok((database, tally)),
            Err(error) => Err(error),
        }));
        let failure = match outcome {
            Ok(Ok((database, tally))) => {
                self.header = Header { revision, tally };
                self.database = Some(database);
                self.medium.promise(revision);
                return Ok(());
            }
            Ok(Err(error)) => error,
            Err(_) => {
                self.damaged = true;
                return Err(CommitError::Damaged);
            }
        };
        // A full disk, most likely. What became of the transaction is for the file to say.
        let Ok((database, found)) = self.again() else { return Err(failure) };
        let kept = found.revision == revision;
        if kept || found == self.header {
            self.header = found;
            self.database = Some(database);
            self.medium.promise(found.revision);
        }
        if kept { Ok(()) } else { Err(failure) }
    }

    /// Opens the database again after a failure.
    fn again(&mut self) -> Result<(Database, Header), CommitError> {
        if self.damaged {
            return Err(CommitError::Damaged);
        }
        if !self.medium.trusted() {
            return Err(CommitError::Distrusted);
        }
        let medium = &self.medium;
        let open = || -> Result<_, CommitError> {
            let database = medium.attach()?;
            let found = header(&database.begin_read()?)?;
            Ok((database, found.map(|(_, header)| header).ok_or(CommitError::Damaged)?))
        };
        catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(|_| {
            self.damaged = true;
            Err(CommitError::Damaged)
        })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let database = self.database.take();
        // Closing writes, which on damaged pages may end in a panic; whoever opens the file next is told.
        if catch_unwind(AssertUnwindSafe(|| drop(database))).is_err() {
            tracing::error!(store = self.medium.name(), "the store could not be closed: it is damaged");
        }
    }
}

/// Fills a new database.
pub(super) fn begin(database: &Database, revision: u64) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(OBJECTS)?;
    say(&transaction, revision, Tally::default())?;
    Ok(transaction.commit()?)
}

/// Writes the header.
fn say(transaction: &WriteTransaction, revision: u64, tally: Tally) -> Result<(), redb::Error> {
    let mut meta = transaction.open_table(META)?;
    for (word, number) in [(REVISION, revision), (FORMAT, CURRENT), (ROWS, tally.rows), (SUM, tally.sum)] {
        meta.insert(word, number)?;
    }
    Ok(())
}

/// Format and header; None of a database that is no store.
fn header(transaction: &ReadTransaction) -> Result<Option<(u64, Header)>, redb::Error> {
    let meta = match transaction.open_table(META) {
        Err(TableError::TableDoesNotExist(_) | TableError::TableTypeMismatch { .. }) => return Ok(None),
        other => other?,
    };
    let number = |word| Ok::<_, redb::Error>(meta.get(word)?.map(|guard| guard.value()));
    let Some(revision) = number(REVISION)? else { return Ok(None) };
    let tally = Tally { rows: number(ROWS)?.unwrap_or_default(), sum: number(SUM)?.unwrap_or_default() };
    Ok(Some((number(FORMAT)?.unwrap_or(1), Header { revision, tally })))
}

/// Everything there is, compared with the tally.
fn load(database: &Database, name: &str) -> Result<(Header, Vec<Object>), OpenError> {
    let failed = |error: redb::Error| OpenError::of(name, error);
    let transaction = database.begin_read().map_err(|error| failed(error.into()))?;
    let Some((format, header)) = header(&transaction).map_err(failed)? else {
        return Err(OpenError::damaged(name, "it is a database of something else"));
    };
    if format > CURRENT {
        return Err(OpenError::Newer { path: name.to_owned(), format, known: CURRENT });
    }
    let (objects, tally) = read(&transaction).map_err(failed)?;
    let objects: Vec<Object> = objects
        .into_iter()
        .collect::<Result<_, Vec<u8>>>()
        .map_err(|key| OpenError::damaged(name, &format!("the record of {} is altered", key.escape_ascii())))?;
    if format < CURRENT {
        let tally = fill(database, header.revision, &objects).map_err(failed)?;
        return Ok((Header { tally, ..header }, objects));
    }
    if tally != header.tally {
        let what = format!("it lists {} records and holds {}, or others", header.tally.rows, tally.rows);
        return Err(OpenError::damaged(name, &what));
    }
    if let Some(late) = objects.iter().find(|object| object.revision > header.revision) {
        let what = format!("a record is of revision {}, and the last one was {}", late.revision, header.revision);
        return Err(OpenError::damaged(name, &what));
    }
    Ok((header, objects))
}

/// Each row's object, or its key when it is damaged.
#[expect(clippy::type_complexity, reason = "taken apart by the one caller")]
fn read(transaction: &ReadTransaction) -> Result<(Vec<Result<Object, Vec<u8>>>, Tally), redb::Error> {
    let table = transaction.open_table(OBJECTS)?;
    let mut tally = Tally::default();
    let mut objects = Vec::with_capacity(usize::try_from(table.len()?).unwrap_or_default().min(1 << 20));
    for line in table.iter()? {
        let (key, value) = line?;
        tally.add(value.value());
        objects.push(row::decode(key.value(), value.value()).ok_or_else(|| key.value().to_vec()));
    }
    Ok((objects, tally))
}

/// Writes a row for each object there is, in the current format.
pub(super) fn fill(database: &Database, revision: u64, objects: &[impl Borrow<Object>]) -> Result<Tally, redb::Error> {
    let transaction = database.begin_write()?;
    let (mut tally, mut bytes) = (Tally::default(), Vec::new());
    {
        let mut table = transaction.open_table(OBJECTS)?;
        for object in objects.iter().map(Borrow::borrow) {
            let key = row::key(&object.key);
            row::encode(&key, object, &mut bytes);
            tally.add(&bytes);
            table.insert(key.as_slice(), bytes.as_slice())?;
        }
    }
    say(&transaction, revision, tally)?;
    transaction.commit()?;
    Ok(tally)
}

/// One durable transaction; yields the tally after it.
fn write(database: &Database, revision: u64, mut tally: Tally, rows: &[Row<'_>]) -> Result<Tally, CommitError> {
    let transaction = database.begin_write()?;
    {
        let mut objects = transaction.open_table(OBJECTS)?;
        let mut bytes = Vec::new();
        for row in rows {
            let key = row::key(row.key);
            let before = match row.object {
                Some(object) => {
                    row::encode(&key, object, &mut bytes);
                    tally.add(&bytes);
                    objects.insert(key.as_slice(), bytes.as_slice())?
                }
                None => objects.remove(key.as_slice())?,
            };
            if let Some(before) = before {
                tally.remove(before.value());
            }
        }
    }
    say(&transaction, revision, tally)?;
    transaction.commit()?;
    Ok(tally)
}
